//! Records, engine to server; each function appends one complete record.

use super::READY;
use super::record::{
    GpuRecord, HwInfoRecord, PerfRecord, ProfRecord, Record, StatRecord, TiersRecord, TopkToken,
    TurnRecord,
};
use super::text::{clean_name, percent_encode, push_hex};
use std::io::Write as _;

/// Log-probability written for a token that cannot be sampled.
const LEAST_LOGPROB: f64 = -9999.0;

macro_rules! put {
    ($out:expr, $($format:tt)*) => {
        // Writing to a Vec cannot fail.
        let _ = write!($out, $($format)*);
    };
}

/// The value, or 0 where C would print a word.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Appends a record as it was read; nothing for one that is malformed.
///
/// A line of unknown kind ends in a plain newline, and numbers have the decimals of this wire.
pub fn write_record(out: &mut Vec<u8>, record: &Record) {
    match record {
        Record::Ready => write_ready(out),
        Record::Stat(stat) => write_stat(out, stat),
        Record::TurnStat(turn) => write_turn_stat(out, turn),
        Record::HwInfo(hw) => write_hwinfo(out, hw),
        Record::Gpus(gpus) => write_gpus(out, gpus),
        Record::Tiers(tiers) => write_tiers(out, tiers),
        Record::Emap { rows, cols, map } => write_emap(out, *rows, *cols, map),
        Record::Hits { rows, cols, hits } => write_hits(out, *rows, *cols, hits),
        Record::Caps(caps) => {
            let pairs: Vec<_> = caps.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            write_caps(out, &pairs);
        }
        Record::Accept { id, prompt_tokens } => write_accept(out, *id, *prompt_tokens as usize),
        Record::Prefill { id, done, total } => {
            write_prefill(out, *id, *done as usize, *total as usize);
        }
        Record::Data { id, data } => write_data(out, *id, data),
        Record::Topk { id, tokens } => write_topk(out, *id, tokens),
        Record::Repin { layer, expert, old_tier, gpu } => {
            write_repin(out, *layer as usize, *expert as usize, *old_tier as u8, *gpu as i32);
        }
        Record::Perf { id, times } => write_perf(out, *id, times),
        Record::Prof(prof) => write_prof(out, prof),
        Record::Entropy(bits) => write_entropy(out, bits),
        Record::Done { id, turn } => write_done(out, *id, turn),
        Record::Error { id, code, detail } => {
            let words: Vec<&str> = detail.iter().map(String::as_str).collect();
            write_error(out, *id, code, &words);
        }
        Record::Unknown(line) => {
            out.extend_from_slice(line);
            out.push(b'\n');
        }
        Record::Malformed { .. } => {}
    }
}

/// Appends READY.
pub fn write_ready(out: &mut Vec<u8>) {
    out.extend_from_slice(READY);
}

/// Appends the four-field STAT of the handshake.
pub fn write_stat(out: &mut Vec<u8>, stat: &StatRecord) {
    put_stat(out, stat);
    out.push(b'\n');
}

/// Appends the six-field STAT of the legacy protocol.
pub fn write_turn_stat(out: &mut Vec<u8>, turn: &TurnRecord) {
    put_turn(out, turn);
    out.push(b'\n');
}

/// Appends HWINFO; control characters and `|` are taken out of the names.
pub fn write_hwinfo(out: &mut Vec<u8>, hw: &HwInfoRecord) {
    put!(out, "HWINFO {} {:.1} ", hw.cores, finite(hw.ram_total_gb));
    put!(out, "{:.1} {} ", finite(hw.ram_avail_gb), hw.ngpu);
    put!(out, "{:.1} ", finite(hw.vram_total_gb));
    put!(out, "{}|{}\n", clean_name(&hw.cpu_name), clean_name(&hw.gpu_name));
}

/// Appends GPUS.
pub fn write_gpus(out: &mut Vec<u8>, gpus: &[GpuRecord]) {
    put!(out, "GPUS {}", gpus.len());
    for gpu in gpus {
        put!(out, " {:.3} {:.3} {}", finite(gpu.used_gb), finite(gpu.total_gb), gpu.experts);
    }
    out.push(b'\n');
}

/// Appends TIERS.
pub fn write_tiers(out: &mut Vec<u8>, tiers: &TiersRecord) {
    put!(out, "TIERS {} {} {} ", tiers.vram, tiers.ram, tiers.disk);
    put!(out, "{:.2} {:.2}\n", finite(tiers.vram_gb), finite(tiers.ram_gb));
}

/// Appends EMAP. `map`: \[rows * cols\] bytes, `tier << 6 | heat`.
pub fn write_emap(out: &mut Vec<u8>, rows: usize, cols: usize, map: &[u8]) {
    put_bytes(out, "EMAP", rows, cols, map);
}

/// Appends HITS. `hits`: \[ceil(rows * cols / 8)\] bytes, least significant bit first.
pub fn write_hits(out: &mut Vec<u8>, rows: usize, cols: usize, hits: &[u8]) {
    put_bytes(out, "HITS", rows, cols, hits);
}

/// Appends CAPS; values are percent-encoded.
pub fn write_caps(out: &mut Vec<u8>, caps: &[(&str, &str)]) {
    out.extend_from_slice(b"CAPS");
    for (key, value) in caps {
        put!(out, " {key}={}", percent_encode(value.as_bytes()));
    }
    out.push(b'\n');
}

/// Appends ACCEPT.
pub fn write_accept(out: &mut Vec<u8>, id: u64, prompt_tokens: usize) {
    put!(out, "ACCEPT {id} {prompt_tokens}\n");
}

/// Appends PREFILL.
pub fn write_prefill(out: &mut Vec<u8>, id: u64, done: usize, total: usize) {
    put!(out, "PREFILL {id} {done} {total}\n");
}

/// Appends DATA with its payload.
pub fn write_data(out: &mut Vec<u8>, id: u64, data: &[u8]) {
    put!(out, "DATA {id} {}\n", data.len());
    out.extend_from_slice(data);
    out.push(b'\n');
}

/// Appends TOPK; `tokens` are in the order they are sent in.
pub fn write_topk(out: &mut Vec<u8>, id: u64, tokens: &[TopkToken]) {
    put!(out, "TOPK {id} {}", tokens.len());
    for token in tokens {
        let finite = token.logprob.is_finite();
        put!(out, " {:.4} ", if finite { token.logprob } else { LEAST_LOGPROB });
        if token.bytes.is_empty() {
            // An empty field would shift the ones behind it.
            out.push(b'-');
        } else {
            push_hex(out, &token.bytes);
        }
    }
    out.push(b'\n');
}

/// Appends REPIN. `layer` is absolute; `old_tier` 0 disk, 1 RAM, 2 VRAM; `gpu` -1 is RAM.
pub fn write_repin(out: &mut Vec<u8>, layer: usize, expert: usize, old_tier: u8, gpu: i32) {
    put!(out, "REPIN {layer} {expert} {old_tier} {gpu}\n");
}

/// Appends PERF.
pub fn write_perf(out: &mut Vec<u8>, id: u64, times: &PerfRecord) {
    put!(out, "PERF {id}");
    for seconds in [
        times.wall_s,
        times.expert_disk_s,
        times.expert_wait_s,
        times.expert_matmul_s,
        times.attention_s,
        times.kv_decompress_s,
        times.head_s,
    ] {
        put!(out, " {:.6}", finite(seconds));
    }
    if let Some(more) = &times.more {
        put!(out, " ffn={:.6} reading={:.6}", finite(more.ffn_s), finite(more.reading_s));
        put!(out, " ahead={} cached={}", more.uses_ahead, more.uses_cached);
        put!(out, " missed={} read={}", more.uses_missed, more.bytes_read);
        if let Some(uses) = more.uses_vram {
            put!(out, " vram={uses}");
        }
        if let Some(bytes) = more.experts_ram {
            put!(out, " experts_ram={bytes}");
        }
        if let Some((drafted, right)) = more.drafts {
            put!(out, " drafts={drafted}:{right}");
        }
        for (i, drive) in more.drives.iter().enumerate() {
            let begin = if i == 0 { " drives=" } else { "," };
            let end = if drive.is_dropped { ":dropped" } else { "" };
            put!(out, "{begin}{}:{}:{}{end}", drive.number, drive.bytes, drive.rate);
        }
    }
    out.push(b'\n');
}

/// Appends PROF.
pub fn write_prof(out: &mut Vec<u8>, prof: &ProfRecord) {
    put!(out, "PROF {:.3} {} {}", finite(prof.wall_s), prof.prompt_tokens, prof.emitted);
    for seconds in [
        prof.expert_disk_s,
        prof.expert_wait_s,
        prof.expert_matmul_s,
        prof.attention_s,
        prof.head_s,
    ] {
        put!(out, " {:.3}", finite(seconds));
    }
    put!(out, " {}\n", prof.forwards);
}

/// Appends ENTROPY. `bits`: \[sparse layers\].
pub fn write_entropy(out: &mut Vec<u8>, bits: &[f64]) {
    out.extend_from_slice(b"ENTROPY");
    for value in bits {
        put!(out, " {:.3}", finite(*value));
    }
    out.push(b'\n');
}

/// Appends DONE.
pub fn write_done(out: &mut Vec<u8>, id: u64, turn: &TurnRecord) {
    put!(out, "DONE {id} ");
    write_turn_stat(out, turn);
}

/// Appends ERROR; each word of `detail` is percent-encoded, empty ones are left out.
pub fn write_error(out: &mut Vec<u8>, id: u64, code: &str, detail: &[&str]) {
    put!(out, "ERROR {id} {code}");
    for word in detail.iter().filter(|word| !word.is_empty()) {
        put!(out, " {}", percent_encode(word.as_bytes()));
    }
    out.push(b'\n');
}

fn put_stat(out: &mut Vec<u8>, stat: &StatRecord) {
    put!(out, "STAT {} {:.2} ", stat.emitted, finite(stat.tok_s));
    put!(out, "{:.1} {:.2}", finite(stat.hit_pct), finite(stat.rss_gb));
}

fn put_turn(out: &mut Vec<u8>, turn: &TurnRecord) {
    put_stat(out, &turn.stat);
    put!(out, " {} {}", turn.prompt_tokens, u8::from(turn.length_limited));
}

fn put_bytes(out: &mut Vec<u8>, kind: &str, rows: usize, cols: usize, bytes: &[u8]) {
    put!(out, "{kind} {rows} {cols} ");
    push_hex(out, bytes);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mux::frame::{DriveRecord, MorePerf};

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn records_have_the_documented_form() {
        let stat = StatRecord { emitted: 3, tok_s: 12.345, hit_pct: 99.94, rss_gb: 1.5 };
        let turn = TurnRecord { stat, prompt_tokens: 7, length_limited: true };
        assert_eq!(text(write_ready), "\u{1}\u{1}READY\u{1}\u{1}\n");
        assert_eq!(
            text(|out| write_stat(out, &StatRecord { rss_gb: 1.234, ..StatRecord::default() })),
            "STAT 0 0.00 0.0 1.23\n"
        );
        assert_eq!(text(|out| write_turn_stat(out, &turn)), "STAT 3 12.35 99.9 1.50 7 1\n");
        assert_eq!(text(|out| write_done(out, 9, &turn)), "DONE 9 STAT 3 12.35 99.9 1.50 7 1\n");
        let gpu = GpuRecord { used_gb: 1.0, total_gb: 80.25, experts: 12 };
        assert_eq!(text(|out| write_gpus(out, &[])), "GPUS 0\n");
        assert_eq!(text(|out| write_gpus(out, &[gpu])), "GPUS 1 1.000 80.250 12\n");
        let tiers = TiersRecord { vram: 1, ram: 2, disk: 3, vram_gb: 0.5, ram_gb: 1.0 };
        assert_eq!(text(|out| write_tiers(out, &tiers)), "TIERS 1 2 3 0.50 1.00\n");
        assert_eq!(text(|out| write_emap(out, 1, 3, &[0, 0x41, 0xbf])), "EMAP 1 3 0041bf\n");
        assert_eq!(text(|out| write_hits(out, 3, 3, &[0x81, 0x01])), "HITS 3 3 8101\n");
        assert_eq!(
            text(|out| write_caps(out, &[("proto", "1"), ("model", "a b\n")])),
            "CAPS proto=1 model=a%20b%0A\n"
        );
        assert_eq!(text(|out| write_accept(out, 4, 5)), "ACCEPT 4 5\n");
        assert_eq!(text(|out| write_prefill(out, 4, 0, 5)), "PREFILL 4 0 5\n");
        assert_eq!(text(|out| write_data(out, 4, b"a\nb")), "DATA 4 3\na\nb\n");
        let tokens = [
            TopkToken { logprob: -0.00004, bytes: vec![b'A', 0xc3] },
            TopkToken { logprob: f64::NEG_INFINITY, bytes: vec![] },
        ];
        assert_eq!(text(|out| write_topk(out, 4, &tokens)), "TOPK 4 2 -0.0000 41c3 -9999.0000 -\n");
        assert_eq!(text(|out| write_repin(out, 3, 2, 1, -1)), "REPIN 3 2 1 -1\n");
        let times = PerfRecord { wall_s: 1.5, head_s: f64::NAN, ..PerfRecord::default() };
        assert_eq!(
            text(|out| write_perf(out, 1, &times)),
            "PERF 1 1.500000 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000\n"
        );
        let more = MorePerf {
            ffn_s: 0.25,
            reading_s: f64::NAN,
            uses_ahead: 1,
            uses_cached: 20,
            uses_missed: 3,
            bytes_read: 4096,
            uses_vram: None,
            experts_ram: None,
            drafts: None,
            drives: Vec::new(),
        };
        let perf = "PERF 1 1.500000 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000 \
                    ffn=0.250000 reading=0.000000 ahead=1 cached=20 missed=3 read=4096";
        for (uses_vram, experts_ram, drafts, told) in [
            (None, None, None, ""),
            (Some(7), None, None, " vram=7"),
            (Some(7), Some(8192), None, " vram=7 experts_ram=8192"),
            (None, None, Some((9, 4)), " drafts=9:4"),
        ] {
            let more = Some(MorePerf { uses_vram, experts_ram, drafts, ..more.clone() });
            assert_eq!(
                text(|out| write_perf(out, 1, &PerfRecord { more, ..times.clone() })),
                format!("{perf}{told}\n")
            );
        }
        let drives = vec![
            DriveRecord { number: 0, bytes: 10, rate: 1_000_000_000, is_dropped: false },
            DriveRecord { number: 2, bytes: 0, rate: 0, is_dropped: true },
        ];
        let more = Some(MorePerf { drives, ..more });
        assert_eq!(
            text(|out| write_perf(out, 1, &PerfRecord { more, ..times })),
            format!("{perf} drives=0:10:1000000000,2:0:0:dropped\n")
        );
        let prof = ProfRecord {
            wall_s: 2.5,
            prompt_tokens: 7,
            emitted: 3,
            forwards: 2,
            ..ProfRecord::default()
        };
        assert_eq!(
            text(|out| write_prof(out, &prof)),
            "PROF 2.500 7 3 0.000 0.000 0.000 0.000 0.000 2\n"
        );
        assert_eq!(text(|out| write_entropy(out, &[1.0, 0.25])), "ENTROPY 1.000 0.250\n");
        assert_eq!(
            text(|out| write_error(out, 1, "ENGINE", &["disk read\nfailed", ""])),
            "ERROR 1 ENGINE disk%20read%0Afailed\n"
        );
        assert_eq!(
            text(|out| write_error(out, 1, "CONTEXT_EXCEEDED", &["300", "255"])),
            "ERROR 1 CONTEXT_EXCEEDED 300 255\n"
        );
    }

    #[test]
    fn device_names_cannot_break_their_record() {
        let hw = HwInfoRecord {
            cores: 2,
            cpu_name: "Fast|CPU\nDONE 1".to_owned(),
            gpu_name: "\u{1}GPU x2".to_owned(),
            ..HwInfoRecord::default()
        };
        assert_eq!(
            text(|out| write_hwinfo(out, &hw)),
            "HWINFO 2 0.0 0.0 0 0.0 FastCPUDONE 1|GPU x2\n"
        );
    }
}
