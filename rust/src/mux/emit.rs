//! From what the engine did to the records that say so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Wire;
use super::frame::{
    self, DriveRecord, GpuRecord, HwInfoRecord, MorePerf, PerfRecord, ProfRecord, StatRecord,
    TiersRecord, TopkToken, TurnRecord,
};
use crate::cpu::{self, Memory};
use crate::engine::{Engine, Event, Turn};
use crate::error::{Error, Result};
use crate::experts::ExpertStore;
use crate::experts::history::SAVE_LIMIT;
use crate::log::say;
use crate::runner;
use crate::stdio::Output;
use crate::store::ModelPart;
use crate::telemetry::{Phases, Traffic};

/// Least time between two PREFILL records of a request.
const PREFILL_INTERVAL: Duration = Duration::from_millis(250);

/// Writes the records that the wire has.
pub struct Emitter {
    out: Output,
    wire: Wire,
    /// When each request's last PREFILL went out.
    prefills: HashMap<u64, Instant>,
    cpu_name: String,
}

impl Emitter {
    /// An emitter into `out`.
    pub fn new(out: Output, wire: Wire) -> Self {
        Self { out, wire, prefills: HashMap::new(), cpu_name: cpu::cpu_name() }
    }

    /// Whether the reader of our output is gone.
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Sends what was written since the last call.
    pub fn flush(&mut self) {
        self.out.flush();
    }

    /// Waits until all has been written.
    ///
    /// # Errors
    /// Those of [`Output::finish`].
    pub fn finish(self) -> Result<()> {
        self.out.finish()
    }

    /// READY and what a server wants to know before the first request.
    pub fn handshake(&mut self, engine: &Engine, model_name: &str) {
        self.out.write(frame::write_ready);
        let stat = StatRecord { emitted: 0, tok_s: 0.0, hit_pct: 0.0, rss_gb: rss_gb() };
        self.out.write(|out| frame::write_stat(out, &stat));
        self.hwinfo(engine);
        self.gpus(engine);
        self.tiers(engine);
        self.map(engine);
        if self.wire.has_caps() {
            self.caps(engine, model_name);
        }
        self.out.flush();
    }

    fn caps(&mut self, engine: &Engine, model_name: &str) {
        let runner = &engine.runner;
        let ids = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let layers: Vec<String> = runner.model.sparse_layers.iter().map(usize::to_string).collect();
        let catalog = &runner.model.catalog;
        let read = catalog.bytes_read();
        let ways = [ModelPart::Dense, ModelPart::Experts]
            .map(|part| if catalog.is_past_cache(part) { "direct" } else { "cached" });
        let conversation = runner::conversation_bytes(&runner.model.layouts(), runner.ctx);
        let conversations = conversation.saturating_mul(runner.slots.len() as u64);
        let experts = &runner.experts;
        let mut caps = vec![
            ("proto", "1".to_owned()),
            ("ctx", runner.ctx.to_string()),
            ("slots", runner.slots.len().to_string()),
            ("vocab", runner.model.decoder.vocab().to_string()),
            ("model", model_name.to_owned()),
            ("submit", self.wire.submit_options().join(",")),
            ("eos", ids(&runner.model.eos_ids)),
            ("layers", layers.join(",")),
            ("isa", runner.isa().name().to_owned()),
            ("threads", runner.n_threads().to_string()),
            ("dense_read", read.dense.to_string()),
            ("experts_read", read.experts.to_string()),
            ("reads", ways.join(",")),
            ("dense_ram", runner.dense_bytes.to_string()),
            ("conversations_ram", conversations.to_string()),
            ("experts_ram", experts.most_bytes().min(experts.total_bytes()).to_string()),
        ];
        if let Some(tokens) = engine.prefill_chunk() {
            caps.push(("prefill_chunk", tokens.to_string()));
        }
        let caps: Vec<(&str, &str)> = caps.iter().map(|(k, v)| (*k, v.as_str())).collect();
        self.out.write(|out| frame::write_caps(out, &caps));
    }

    /// A request was admitted.
    pub fn accept(&mut self, id: u64, prompt_tokens: usize) {
        if self.wire.has_accept() {
            self.out.write(|out| frame::write_accept(out, id, prompt_tokens));
        }
    }

    /// A request ended by CANCEL.
    pub fn cancelled(&mut self, id: u64) {
        self.prefills.remove(&id);
        self.out.write(|out| frame::write_error(out, id, "CANCELLED", &[]));
    }

    /// The stream of requests is lost.
    pub fn bad_frame(&mut self, id: u64, detail: &str) {
        self.out.write(|out| frame::write_error(out, id, "BAD_FRAME", &[detail]));
    }

    /// A request was refused or failed.
    pub fn error(&mut self, id: u64, error: &Error) {
        self.prefills.remove(&id);
        let detail = match error {
            Error::ContextExceeded { tokens, counted, limit } => {
                let exact = if *counted { "" } else { "least" };
                vec![tokens.to_string(), limit.to_string(), exact.into()]
            }
            Error::SlotBusy(_)
            | Error::DuplicateId(_)
            | Error::EmptyPrompt
            | Error::NotFound(_) => Vec::new(),
            other => vec![other.to_string()],
        };
        let detail: Vec<&str> = detail.iter().map(String::as_str).collect();
        self.out.write(|out| frame::write_error(out, id, error.wire_code(), &detail));
    }

    /// Something happened to a request.
    pub fn event(&mut self, event: Event, engine: &mut Engine) {
        match event {
            Event::Prefill { id, done, total } => {
                let due = self.prefills.get(&id).is_none_or(|at| at.elapsed() >= PREFILL_INTERVAL);
                if due && self.wire.has_prefill() {
                    self.prefills.insert(id, Instant::now());
                    self.out.write(|out| frame::write_prefill(out, id, done, total));
                }
            }
            Event::Token { id, token } => {
                self.out.write(|out| frame::write_data(out, id, &token.text));
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
                    self.out.write(|out| frame::write_topk(out, id, &tokens));
                }
            }
            Event::Done { id, turn } => self.done(id, &turn, engine),
            Event::Failed { id, error: Error::Interrupted } => self.cancelled(id),
            Event::Failed { id, error } => {
                say(format_args!("error: request {id}: {error}"));
                self.error(id, &error);
            }
        }
    }

    fn done(&mut self, id: u64, turn: &Turn, engine: &mut Engine) {
        self.prefills.remove(&id);
        // A turn that is told as done is remembered. Nothing else waits for that.
        if let Some(saved) = engine.runner.saved_history() {
            self.out.after(move || saved.wait(SAVE_LIMIT));
        }
        self.hwinfo(engine);
        if self.wire.has_details() {
            let mut perf = perf_record(turn.wall_s, &turn.phases);
            perf.more = self.wire.has_caps().then(|| more_perf(turn, &engine.runner.experts));
            self.out.write(|out| frame::write_perf(out, id, &perf));
            self.out.write(|out| frame::write_entropy(out, &turn.entropy));
        }
        self.gpus(engine);
        self.tiers(engine);
        self.map(engine);
        self.hits(engine);
        if self.wire.has_prof() {
            let prof = prof_record(turn);
            self.out.write(|out| frame::write_prof(out, &prof));
        }
        let record = TurnRecord {
            stat: StatRecord {
                emitted: turn.emitted as u64,
                tok_s: turn.decode_tps,
                hit_pct: turn.traffic.uses.hit_pct(),
                rss_gb: rss_gb(),
            },
            prompt_tokens: turn.prompt_tokens as u64,
            length_limited: turn.length_limited,
        };
        self.out.write(|out| frame::write_done(out, id, &record));
    }

    /// HITS while turns are running.
    pub fn hits_within_turn(&mut self, engine: &mut Engine) {
        if self.wire.has_details() {
            self.hits(engine);
        }
    }

    /// Experts routed since the last record of this kind.
    fn hits(&mut self, engine: &mut Engine) {
        let (rows, cols) = engine.runner.experts.geometry();
        let hits = engine.runner.experts.take_hits();
        self.out.write(|out| frame::write_hits(out, rows, cols, &hits));
    }

    fn hwinfo(&mut self, engine: &Engine) {
        let memory = Memory::read();
        let device = engine.runner.experts.device();
        let record = HwInfoRecord {
            cores: cpu::n_threads() as u64,
            ram_total_gb: memory.total_bytes as f64 / 1e9,
            ram_avail_gb: memory.available_bytes as f64 / 1e9,
            ngpu: u64::from(device.is_some()),
            vram_total_gb: device.as_ref().map_or(0.0, |device| device.total_bytes as f64 / 1e9),
            cpu_name: self.cpu_name.clone(),
            gpu_name: device.map_or_else(|| "none".into(), |device| device.name),
        };
        self.out.write(|out| frame::write_hwinfo(out, &record));
    }

    fn gpus(&mut self, engine: &Engine) {
        let device = engine.runner.experts.device().map(|device| GpuRecord {
            used_gb: device.used_bytes as f64 / 1e9,
            total_gb: device.total_bytes as f64 / 1e9,
            experts: device.experts as u64,
        });
        self.out.write(|out| frame::write_gpus(out, device.as_slice()));
    }

    fn tiers(&mut self, engine: &Engine) {
        let record = tiers_record(engine);
        self.out.write(|out| frame::write_tiers(out, &record));
    }

    fn map(&mut self, engine: &Engine) {
        let (rows, cols) = engine.runner.experts.geometry();
        let map = engine.runner.experts.map();
        self.out.write(|out| frame::write_emap(out, rows, cols, &map));
    }
}

fn perf_record(wall_s: f64, phases: &Phases) -> PerfRecord {
    PerfRecord {
        wall_s,
        expert_disk_s: phases.expert_disk.as_secs_f64(),
        expert_wait_s: phases.expert_wait.as_secs_f64(),
        expert_matmul_s: phases.expert_matmul.as_secs_f64(),
        attention_s: phases.attention.as_secs_f64(),
        kv_decompress_s: phases.kv_decompress.as_secs_f64(),
        head_s: phases.head.as_secs_f64(),
        more: None,
    }
}

fn more_perf(turn: &Turn, experts: &ExpertStore) -> MorePerf {
    let Traffic { uses, bytes_read, reading } = turn.traffic;
    MorePerf {
        ffn_s: turn.phases.ffn.as_secs_f64(),
        reading_s: reading.as_secs_f64(),
        uses_ahead: uses.ahead,
        uses_cached: uses.cached,
        uses_missed: uses.missed,
        bytes_read,
        uses_vram: (uses.vram > 0).then_some(uses.vram),
        experts_ram: Some(experts.budget_bytes().min(experts.total_bytes())),
        drafts: (turn.drafts.drafted > 0).then_some((turn.drafts.drafted, turn.drafts.right)),
        drives: turn
            .drives
            .iter()
            .map(|drive| DriveRecord {
                number: drive.number as u64,
                bytes: drive.bytes,
                rate: drive.rate.unwrap_or(0.0) as u64,
                is_dropped: drive.is_dropped,
            })
            .collect(),
    }
}

fn prof_record(turn: &Turn) -> ProfRecord {
    let perf = perf_record(turn.decode.wall_s, &turn.decode.phases);
    ProfRecord {
        wall_s: perf.wall_s,
        prompt_tokens: turn.prompt_tokens as u64,
        emitted: turn.emitted as u64,
        expert_disk_s: perf.expert_disk_s,
        expert_wait_s: perf.expert_wait_s,
        expert_matmul_s: perf.expert_matmul_s,
        attention_s: perf.attention_s,
        head_s: perf.head_s,
        forwards: turn.decode.forwards,
    }
}

/// Where the experts are.
pub fn tiers_record(engine: &Engine) -> TiersRecord {
    let tiers = engine.runner.experts.tiers();
    TiersRecord {
        vram: tiers.vram as u64,
        ram: tiers.ram as u64,
        disk: tiers.disk as u64,
        vram_gb: tiers.vram_bytes as f64 / 1e9,
        ram_gb: tiers.ram_bytes as f64 / 1e9,
    }
}

/// Resident memory of this process, in 1e9 bytes.
pub fn rss_gb() -> f64 {
    cpu::resident_bytes() as f64 / 1e9
}
