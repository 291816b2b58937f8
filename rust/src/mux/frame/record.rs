//! What the records of an engine say, in both directions.

/// `STAT`: figures of the process, or of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StatRecord {
    /// Tokens generated in the turn.
    pub emitted: u64,
    /// Tokens a second.
    pub tok_s: f64,
    /// Share of routed selections served from memory, in percent.
    pub hit_pct: f64,
    /// Resident set in 1e9 bytes.
    pub rss_gb: f64,
}

/// The six figures of a finished turn, in `DONE` and in legacy `STAT` lines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TurnRecord {
    /// The first four.
    pub stat: StatRecord,
    /// Tokens of the whole prompt, the reused ones too.
    pub prompt_tokens: u64,
    /// Whether the token limit or the context ended the turn.
    pub length_limited: bool,
}

/// `HWINFO`: the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HwInfoRecord {
    /// Logical CPUs.
    pub cores: u64,
    /// Memory in 1e9 bytes.
    pub ram_total_gb: f64,
    /// Memory that could be taken now, in 1e9 bytes.
    pub ram_avail_gb: f64,
    /// GPUs in use.
    pub ngpu: u64,
    /// Memory of all GPUs in 1e9 bytes.
    pub vram_total_gb: f64,
    /// CPU model, possibly empty.
    pub cpu_name: String,
    /// GPU model, possibly empty.
    pub gpu_name: String,
}

/// One device of `GPUS`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuRecord {
    /// Memory in use, in 1e9 bytes.
    pub used_gb: f64,
    /// Memory in 1e9 bytes.
    pub total_gb: f64,
    /// Experts resident on it.
    pub experts: u64,
}

/// `TIERS`: where the experts are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TiersRecord {
    /// Experts in VRAM.
    pub vram: u64,
    /// Experts in RAM.
    pub ram: u64,
    /// Experts on disk only.
    pub disk: u64,
    /// Bytes of experts in VRAM, in 1e9.
    pub vram_gb: f64,
    /// Bytes of experts in RAM, in 1e9.
    pub ram_gb: f64,
}

/// `PERF`: seconds spent during a request's life.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerfRecord {
    /// Wall time, prefill included.
    pub wall_s: f64,
    /// Disk service for experts; overlaps compute.
    pub expert_disk_s: f64,
    /// Time in which nothing could run for want of an expert.
    pub expert_wait_s: f64,
    /// Expert matrix products.
    pub expert_matmul_s: f64,
    /// Attention.
    pub attention_s: f64,
    /// Keys and values rebuilt from their compressed form; a part of attention.
    pub kv_decompress_s: f64,
    /// Output head.
    pub head_s: f64,
    /// Fields that were added later.
    pub more: Option<MorePerf>,
}

/// What `PERF` tells by `key=value` behind its times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MorePerf {
    /// `ffn`: seconds of dense feed-forward blocks and shared experts.
    pub ffn_s: f64,
    /// `reading`: seconds in which at least one expert was being read.
    pub reading_s: f64,
    /// `ahead`: uses of experts in memory that were read ahead and not used before.
    pub uses_ahead: u64,
    /// `cached`: uses of other experts in memory.
    pub uses_cached: u64,
    /// `missed`: uses of experts that were not in memory, or still being read.
    pub uses_missed: u64,
    /// `read`: bytes of experts read from files.
    pub bytes_read: u64,
    /// `vram`: uses of experts on a device; none if that is not told.
    pub uses_vram: Option<u64>,
    /// `experts_ram`: bytes that experts may take in memory as the turn ends.
    pub experts_ram: Option<u64>,
    /// `drafts`: tokens that were computed before it was certain that they are needed, and how many
    /// of them were; none where nothing was, or if that is not told.
    pub drafts: Option<(u64, u64)>,
    /// `drives`: what experts were read from; nothing without mirrors, or if that is not told.
    pub drives: Vec<DriveRecord>,
}

/// One of the drives of `PERF`: `<number>:<bytes>:<bytes a second>`, and `:dropped` behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveRecord {
    /// 0 for the model's own folders, else the place of the mirror among those that were named.
    pub number: u64,
    /// Bytes of experts.
    pub bytes: u64,
    /// Bytes a second, of late; 0 where that is not known.
    pub rate: u64,
    /// Whether it is used no longer.
    pub is_dropped: bool,
}

/// `PROF`: what the C engine says of a turn in place of `PERF`; everything after prefill.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProfRecord {
    /// Wall time in seconds.
    pub wall_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub emitted: u64,
    /// Seconds of disk service for experts; overlaps compute.
    pub expert_disk_s: f64,
    /// Seconds in which nothing could run for want of an expert.
    pub expert_wait_s: f64,
    /// Seconds of expert matrix products.
    pub expert_matmul_s: f64,
    /// Seconds of attention.
    pub attention_s: f64,
    /// Seconds of the output head.
    pub head_s: f64,
    /// Forward passes.
    pub forwards: u64,
}

/// One alternative of `TOPK`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopkToken {
    /// Natural log of its probability at temperature 1.
    pub logprob: f64,
    /// Raw bytes of the token, possibly none.
    pub bytes: Vec<u8>,
}

/// One record of an engine's output.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// The engine can serve.
    Ready,
    /// Figures of the process.
    Stat(StatRecord),
    /// Figures of a turn, outside DONE.
    TurnStat(TurnRecord),
    /// The machine.
    HwInfo(HwInfoRecord),
    /// The devices.
    Gpus(Vec<GpuRecord>),
    /// Where the experts are.
    Tiers(TiersRecord),
    /// Tier and heat of every expert.
    Emap {
        /// Sparse layers.
        rows: usize,
        /// Experts a layer.
        cols: usize,
        /// \[rows * cols\] bytes, `tier << 6 | heat`.
        map: Vec<u8>,
    },
    /// Experts routed since the previous such record.
    Hits {
        /// Sparse layers.
        rows: usize,
        /// Experts a layer.
        cols: usize,
        /// \[ceil(rows * cols / 8)\] bytes, least significant bit first.
        hits: Vec<u8>,
    },
    /// What the engine adds to the seed's wire.
    Caps(Vec<(String, String)>),
    /// A request was admitted.
    Accept {
        /// The request.
        id: u64,
        /// Tokens of its prompt.
        prompt_tokens: u64,
    },
    /// Progress of a prefill.
    Prefill {
        /// The request.
        id: u64,
        /// Tokens in the cache.
        done: u64,
        /// Tokens of the prompt.
        total: u64,
    },
    /// Text of one token.
    Data {
        /// The request.
        id: u64,
        /// Bytes that became complete with it.
        data: Vec<u8>,
    },
    /// The likeliest tokens where the last one was sampled.
    Topk {
        /// The request.
        id: u64,
        /// Descending.
        tokens: Vec<TopkToken>,
    },
    /// An expert became pinned.
    Repin {
        /// Absolute layer.
        layer: u64,
        /// Expert of that layer.
        expert: u64,
        /// Where it was: 0 disk, 1 RAM, 2 VRAM.
        old_tier: u64,
        /// Device it is on, -1 for RAM.
        gpu: i64,
    },
    /// Where a request's time went.
    Perf {
        /// The request.
        id: u64,
        /// Seconds.
        times: PerfRecord,
    },
    /// Where the time of the turn that ends next went, as the C engine says it.
    Prof(ProfRecord),
    /// Entropy of the routing during a turn, in bits a sparse layer.
    Entropy(Vec<f64>),
    /// A turn ended well.
    Done {
        /// The request.
        id: u64,
        /// Its figures.
        turn: TurnRecord,
    },
    /// A request ended badly.
    Error {
        /// The request, 0 for none.
        id: u64,
        /// Upper-case word.
        code: String,
        /// Further words, percent-decoded.
        detail: Vec<String>,
    },
    /// A line of a kind this reader does not know.
    Unknown(Vec<u8>),
    /// A known kind that does not parse; its line is cut to 4096 bytes.
    Malformed {
        /// The line.
        line: Vec<u8>,
        /// What is wrong with it.
        reason: String,
    },
}
