//! stdin and signals, read by threads of their own so that the model never waits for them.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::frame::{Incoming, RequestReader};
use super::waiting::Tokens;
use crate::error::{Error, Result};

/// Chunks read ahead; behind them the pipe fills and the client waits.
const QUEUE: usize = 16;
const CHUNK_BYTES: usize = 64 << 10;
/// Requests taken from the queue before they are handled.
const MAX_INBOX: usize = 256;

/// What the user or the system asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

enum Message {
    Bytes(Vec<u8>),
    End,
    Signal(Signal),
    Tokens(Tokens),
}

/// Where other threads put what the session has to take up.
#[derive(Clone)]
pub struct Mailbox(SyncSender<Message>);

impl Mailbox {
    /// Delivers tokens; false once the session is over.
    pub fn deliver(&self, tokens: Tokens) -> bool {
        self.0.send(Message::Tokens(tokens)).is_ok()
    }
}

/// Parsed requests and signals in the order they came.
pub struct Input {
    messages: Receiver<Message>,
    reader: RequestReader,
    inbox: VecDeque<Incoming>,
    signals: VecDeque<Signal>,
    tokens: VecDeque<Tokens>,
    ended: bool,
    mailbox: Mailbox,
    terminating: Arc<AtomicBool>,
}

impl Input {
    /// Starts reading stdin and catching SIGINT and SIGTERM.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses signal handlers.
    pub fn start(options: &[&str], slots: usize) -> Result<Self> {
        let (sender, messages) = sync_channel(QUEUE);
        let mut signals =
            Signals::new([SIGINT, SIGTERM]).map_err(|e| Error::io("signal handlers", e))?;
        let signal_sender = sender.clone();
        let mailbox = Mailbox(sender.clone());
        let terminating = Arc::new(AtomicBool::new(false));
        let terminated = Arc::clone(&terminating);
        std::thread::spawn(move || {
            for signal in &mut signals {
                if signal == SIGTERM {
                    terminated.store(true, Ordering::Relaxed);
                }
                let signal = if signal == SIGINT { Signal::Interrupt } else { Signal::Terminate };
                if signal_sender.send(Message::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || read_stdin(&sender));
        Ok(Self {
            messages,
            reader: RequestReader::new(options, slots),
            inbox: VecDeque::new(),
            signals: VecDeque::new(),
            tokens: VecDeque::new(),
            ended: false,
            mailbox,
            terminating,
        })
    }

    /// For threads that work for the session.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// Set once SIGTERM arrived, even while the session is not listening.
    pub fn terminating(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.terminating)
    }

    /// Waits until something arrives.
    pub fn wait(&mut self) {
        match self.messages.recv() {
            Ok(message) => self.take(message),
            Err(_) => self.ended = true,
        }
    }

    /// Takes what has arrived without waiting.
    pub fn poll(&mut self) {
        while self.inbox.len() < MAX_INBOX {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Bytes(bytes) => self.reader.feed(&bytes),
            Message::End => {
                self.reader.finish();
                self.ended = true;
            }
            Message::Signal(signal) => self.signals.push_back(signal),
            Message::Tokens(tokens) => self.tokens.push_back(tokens),
        }
        while let Some(incoming) = self.reader.next() {
            self.inbox.push_back(incoming);
        }
    }

    /// The next request.
    pub fn next(&mut self) -> Option<Incoming> {
        self.inbox.pop_front()
    }

    /// The next signal.
    pub fn take_signal(&mut self) -> Option<Signal> {
        self.signals.pop_front()
    }

    /// The next tokens that were waited for.
    pub fn take_tokens(&mut self) -> Option<Tokens> {
        self.tokens.pop_front()
    }

    /// Whether nothing waits to be taken up.
    pub fn is_empty(&self) -> bool {
        self.inbox.is_empty() && self.signals.is_empty() && self.tokens.is_empty()
    }

    /// Whether stdin is at its end.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether something that waits ends request `id`.
    pub fn concerns(&self, id: u64) -> bool {
        !self.signals.is_empty()
            || self.inbox.iter().any(
                |incoming| matches!(incoming, Incoming::Stop(i) | Incoming::Cancel(i) if *i == id),
            )
    }
}

fn read_stdin(sender: &SyncSender<Message>) {
    let mut stdin = std::io::stdin().lock();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let message = match stdin.read(&mut chunk) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => Message::End,
            Ok(n) => Message::Bytes(chunk[..n].to_vec()),
        };
        let last = matches!(message, Message::End);
        if sender.send(message).is_err() || last {
            return;
        }
    }
}
