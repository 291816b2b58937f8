//! From what the engine did to the records that say so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use super::frame::{
    self, HwInfoRecord, PerfRecord, StatRecord, TiersRecord, TopkToken, TurnRecord,
};
use super::{Out, SUBMIT_OPTIONS};
use crate::cpu::{self, Memory};
use crate::engine::{Engine, Event, Turn};
use crate::error::Error;

/// Least time between two PREFILL records of a request.
const PREFILL_INTERVAL: Duration = Duration::from_millis(250);

/// How long records may wait for a reader that does not read, once SIGTERM has come.
const TERMINATION_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two tries to queue a record.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Writes records, each with the queue entry of its own.
pub struct Emitter {
    out: Out,
    terminating: Arc<AtomicBool>,
    closed: bool,
    /// When each request's last PREFILL went out.
    prefills: HashMap<u64, Instant>,
    cpu_name: String,
}

impl Emitter {
    /// An emitter into the writer's queue; `terminating` is set once SIGTERM has come.
    pub fn new(out: Out, terminating: Arc<AtomicBool>) -> Self {
        Self {
            out,
            terminating,
            closed: false,
            prefills: HashMap::new(),
            cpu_name: cpu::cpu_name(),
        }
    }

    /// Whether the reader of our output is gone.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Queues one record. A full queue makes the model wait; after SIGTERM not for ever.
    fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.closed {
            return;
        }
        let mut record = Vec::new();
        write(&mut record);
        let mut deadline = None;
        loop {
            record = match self.out.try_send(record) {
                Ok(()) => return,
                Err(TrySendError::Disconnected(_)) => {
                    self.closed = true;
                    return;
                }
                Err(TrySendError::Full(record)) => record,
            };
            if self.terminating.load(Ordering::Relaxed) {
                let deadline =
                    *deadline.get_or_insert_with(|| Instant::now() + TERMINATION_PATIENCE);
                if Instant::now() > deadline {
                    eprintln!("error: terminated while nobody reads the output");
                    self.closed = true;
                    return;
                }
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// READY and what a server wants to know before the first request.
    pub fn handshake(&mut self, engine: &Engine, model_name: &str) {
        self.send(frame::write_ready);
        let stat = StatRecord { emitted: 0, tok_s: 0.0, hit_pct: 0.0, rss_gb: rss_gb() };
        self.send(|out| frame::write_stat(out, &stat));
        self.hwinfo();
        self.send(|out| frame::write_gpus(out, &[]));
        self.tiers(engine);
        self.map(engine);
        let runner = &engine.runner;
        let ids = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let layers: Vec<String> = runner.model.sparse_layers.iter().map(usize::to_string).collect();
        let caps = [
            ("proto", "1".to_owned()),
            ("ctx", runner.ctx.to_string()),
            ("slots", runner.slots.len().to_string()),
            ("vocab", runner.model.decoder.vocab().to_string()),
            ("model", model_name.to_owned()),
            ("submit", SUBMIT_OPTIONS.join(",")),
            ("eos", ids(&runner.model.eos_ids)),
            ("layers", layers.join(",")),
            ("isa", runner.isa().name().to_owned()),
            ("threads", runner.n_threads().to_string()),
        ];
        let caps: Vec<(&str, &str)> = caps.iter().map(|(k, v)| (*k, v.as_str())).collect();
        self.send(|out| frame::write_caps(out, &caps));
    }

    /// A request was admitted.
    pub fn accept(&mut self, id: u64, prompt_tokens: usize) {
        self.send(|out| frame::write_accept(out, id, prompt_tokens));
    }

    /// A request ended by CANCEL.
    pub fn cancelled(&mut self, id: u64) {
        self.prefills.remove(&id);
        self.send(|out| frame::write_error(out, id, "CANCELLED", &[]));
    }

    /// The stream of requests is lost.
    pub fn bad_frame(&mut self, id: u64, detail: &str) {
        self.send(|out| frame::write_error(out, id, "BAD_FRAME", &[detail]));
    }

    /// A request was refused or failed.
    pub fn error(&mut self, id: u64, error: &Error) {
        self.prefills.remove(&id);
        let detail = match error {
            Error::ContextExceeded { tokens, limit } => vec![tokens.to_string(), limit.to_string()],
            Error::SlotBusy(_)
            | Error::DuplicateId(_)
            | Error::EmptyPrompt
            | Error::NotFound(_) => Vec::new(),
            other => vec![other.to_string()],
        };
        let detail: Vec<&str> = detail.iter().map(String::as_str).collect();
        self.send(|out| frame::write_error(out, id, error.wire_code(), &detail));
    }

    /// Something happened to a request.
    pub fn event(&mut self, event: Event, engine: &mut Engine) {
        match event {
            Event::Prefill { id, done, total } => {
                let due = self.prefills.get(&id).is_none_or(|at| at.elapsed() >= PREFILL_INTERVAL);
                if due {
                    self.prefills.insert(id, Instant::now());
                    self.send(|out| frame::write_prefill(out, id, done, total));
                }
            }
            Event::Token { id, token } => {
                self.send(|out| frame::write_data(out, id, &token.text));
                if !token.top.is_empty() {
                    let bytes = |id| engine.tokenizer.token_bytes(id).to_vec();
                    let tokens: Vec<TopkToken> = token
                        .top
                        .iter()
                        .map(|&(id, logprob)| TopkToken {
                            logprob: f64::from(logprob),
                            bytes: bytes(id),
                        })
                        .collect();
                    self.send(|out| frame::write_topk(out, id, &tokens));
                }
            }
            Event::Done { id, turn } => self.done(id, &turn, engine),
            Event::Failed { id, error } => {
                eprintln!("error: request {id}: {error}");
                self.error(id, &error);
            }
        }
    }

    fn done(&mut self, id: u64, turn: &Turn, engine: &mut Engine) {
        self.prefills.remove(&id);
        self.hwinfo();
        let perf = PerfRecord {
            wall_s: turn.wall_s,
            expert_disk_s: turn.phases.expert_disk.as_secs_f64(),
            expert_wait_s: turn.phases.expert_wait.as_secs_f64(),
            expert_matmul_s: turn.phases.expert_matmul.as_secs_f64(),
            attention_s: turn.phases.attention.as_secs_f64(),
            kv_decompress_s: turn.phases.kv_decompress.as_secs_f64(),
            head_s: turn.phases.head.as_secs_f64(),
        };
        self.send(|out| frame::write_perf(out, id, &perf));
        self.send(|out| frame::write_entropy(out, &turn.entropy));
        self.send(|out| frame::write_gpus(out, &[]));
        self.tiers(engine);
        self.map(engine);
        self.hits(engine);
        let record = TurnRecord {
            stat: StatRecord {
                emitted: turn.emitted as u64,
                tok_s: turn.decode_tps,
                hit_pct: turn.hit_pct,
                rss_gb: rss_gb(),
            },
            prompt_tokens: turn.prompt_tokens as u64,
            length_limited: turn.length_limited,
        };
        self.send(|out| frame::write_done(out, id, &record));
    }

    /// Experts routed since the last record of this kind.
    pub fn hits(&mut self, engine: &mut Engine) {
        let (rows, cols) = engine.runner.experts.geometry();
        let hits = engine.runner.experts.take_hits();
        self.send(|out| frame::write_hits(out, rows, cols, &hits));
    }

    fn hwinfo(&mut self) {
        let memory = Memory::read();
        let record = HwInfoRecord {
            cores: cpu::n_threads() as u64,
            ram_total_gb: memory.total_bytes as f64 / 1e9,
            ram_avail_gb: memory.available_bytes as f64 / 1e9,
            ngpu: 0,
            vram_total_gb: 0.0,
            cpu_name: self.cpu_name.clone(),
            gpu_name: "none".into(),
        };
        self.send(|out| frame::write_hwinfo(out, &record));
    }

    fn tiers(&mut self, engine: &Engine) {
        let tiers = engine.runner.experts.tiers();
        let record = TiersRecord {
            vram: tiers.vram as u64,
            ram: tiers.ram as u64,
            disk: tiers.disk as u64,
            vram_gb: tiers.vram_bytes as f64 / 1e9,
            ram_gb: tiers.ram_bytes as f64 / 1e9,
        };
        self.send(|out| frame::write_tiers(out, &record));
    }

    fn map(&mut self, engine: &Engine) {
        let (rows, cols) = engine.runner.experts.geometry();
        let map = engine.runner.experts.map();
        self.send(|out| frame::write_emap(out, rows, cols, &map));
    }
}

fn rss_gb() -> f64 {
    cpu::resident_bytes() as f64 / 1e9
}
