//! What a session hears: requests, signals, and messages of its own threads.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};

/// Chunks read ahead; behind them the pipe fills and the client waits.
const QUEUE: usize = 16;
const CHUNK_BYTES: usize = 64 << 10;
/// Requests taken from the queue before they are handled.
const MAX_INBOX: usize = 256;

/// Turns bytes into the requests of one protocol.
pub trait Parser {
    /// A request.
    type Item;
    /// Takes the next bytes.
    fn feed(&mut self, bytes: &[u8]);
    /// There are no more bytes.
    fn finish(&mut self);
    /// The next request that is complete.
    fn next(&mut self) -> Option<Self::Item>;
}

/// A second SIGINT within this time may mean SIGTERM.
const DOUBLE_INTERRUPT: Duration = Duration::from_secs(2);

/// What SIGINT means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// Each is one [`Signal::Interrupt`].
    Single,
    /// The second of two in short order is a [`Signal::Terminate`].
    EndWhenDoubled,
}

/// What the user or the system asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

enum Message<M> {
    Bytes(Vec<u8>),
    End,
    Signal(Signal),
    Mail(M),
}

/// Where other threads put what the session has to take up.
pub struct Mailbox<M>(SyncSender<Message<M>>);

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M> Mailbox<M> {
    /// Delivers a message; false once the session is over.
    pub fn deliver(&self, mail: M) -> bool {
        self.0.send(Message::Mail(mail)).is_ok()
    }
}

/// Requests, signals and mail in the order they came.
pub struct Input<P: Parser, M> {
    messages: Receiver<Message<M>>,
    sender: SyncSender<Message<M>>,
    parser: P,
    inbox: VecDeque<P::Item>,
    signals: VecDeque<Signal>,
    mail: VecDeque<M>,
    ended: bool,
    terminating: Arc<AtomicBool>,
}

impl<P: Parser, M: Send + 'static> Input<P, M> {
    /// Starts reading `reader` on a thread, which ends with it.
    pub fn start(parser: P, reader: impl Read + Send + 'static) -> Self {
        let (sender, messages) = sync_channel(QUEUE);
        let bytes = sender.clone();
        std::thread::spawn(move || read_all(reader, &bytes));
        Self {
            messages,
            sender,
            parser,
            inbox: VecDeque::new(),
            signals: VecDeque::new(),
            mail: VecDeque::new(),
            ended: false,
            terminating: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Takes SIGINT and SIGTERM of the process from now on.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses signal handlers.
    pub fn catch_signals(&self, interrupts: Interrupts) -> Result<()> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM]).map_err(|e| Error::io("signal handlers", e))?;
        let sender = self.sender.clone();
        let terminating = Arc::clone(&self.terminating);
        std::thread::spawn(move || {
            let mut interrupted_at: Option<Instant> = None;
            for signal in &mut signals {
                let again = interrupts == Interrupts::EndWhenDoubled
                    && interrupted_at.is_some_and(|at| at.elapsed() < DOUBLE_INTERRUPT);
                interrupted_at = Some(Instant::now());
                let signal = if signal == SIGTERM || again {
                    terminating.store(true, Ordering::Relaxed);
                    Signal::Terminate
                } else {
                    Signal::Interrupt
                };
                if sender.send(Message::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// For threads that work for the session.
    pub fn mailbox(&self) -> Mailbox<M> {
        Mailbox(self.sender.clone())
    }

    /// Set once the process has to end, even while the session is not listening.
    pub fn terminating(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.terminating)
    }

    /// Waits until something arrives.
    pub fn wait(&mut self) {
        // A sender is kept here, so the channel never ends.
        if let Ok(message) = self.messages.recv() {
            self.receive(message);
        }
    }

    /// Takes what has arrived without waiting.
    pub fn poll(&mut self) {
        while self.inbox.len() < MAX_INBOX {
            match self.messages.try_recv() {
                Ok(message) => self.receive(message),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    fn receive(&mut self, message: Message<M>) {
        match message {
            Message::Bytes(bytes) => self.parser.feed(&bytes),
            Message::End => {
                self.parser.finish();
                self.ended = true;
            }
            Message::Signal(signal) => self.signals.push_back(signal),
            Message::Mail(mail) => self.mail.push_back(mail),
        }
        while let Some(item) = self.parser.next() {
            self.inbox.push_back(item);
        }
    }

    /// The next request.
    pub fn take(&mut self) -> Option<P::Item> {
        self.inbox.pop_front()
    }

    /// Requests that wait, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &P::Item> {
        self.inbox.iter()
    }

    /// The next signal.
    pub fn take_signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    /// Whether a signal waits.
    pub fn has_signal(&self) -> bool {
        !self.signals.is_empty()
    }

    /// The next message of a thread.
    pub fn take_mail(&mut self) -> Option<M> {
        self.mail.pop_front()
    }

    /// Whether nothing waits to be taken up.
    pub fn is_empty(&self) -> bool {
        self.inbox.is_empty() && self.signals.is_empty() && self.mail.is_empty()
    }

    /// Whether the reader is at its end.
    pub fn ended(&self) -> bool {
        self.ended
    }
}

fn read_all<M>(mut reader: impl Read, sender: &SyncSender<Message<M>>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let message = match reader.read(&mut chunk) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => Message::End,
            Ok(n) => Message::Bytes(chunk[..n].to_vec()),
        };
        let last = matches!(message, Message::End);
        if sender.send(message).is_err() || last {
            return;
        }
    }
}
