//! Records, engine to server: the reading side.

use super::number::{integer, lenient};
use super::record::{
    DriveRecord, GpuRecord, HwInfoRecord, MorePerf, PerfRecord, ProfRecord, Record, StatRecord,
    TiersRecord, TopkToken, TurnRecord,
};
use super::text::{clean_name, parse_hex, percent_decode};
use super::{MAX_LINE_BYTES, MAX_PAYLOAD_BYTES, MAX_SKIP_BYTES};

/// READY without its newline, before which another engine may put a carriage return.
const MARKER: &[u8] = b"\x01\x01READY\x01\x01";
/// Bytes of a bad line that are kept for the log.
const KEPT_BYTES: usize = 4096;
/// What a log-probability that is no number stands for.
const LEAST_LOGPROB: f64 = -9999.0;

/// Incremental parser of an engine's output, total on every byte string.
///
/// Everything before READY is skipped. Feed bytes, then call [`RecordReader::next`] until it
/// returns `None`. Trailing fields are ignored; numbers may have any decimals, and those that are
/// not finite read as 0. After a DATA header whose length cannot be read, parsing resumes at the
/// next line: text of that answer is missing then, so a malformed DATA spoils its turn.
#[derive(Debug)]
pub struct RecordReader {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are done with.
    start: usize,
    /// Bytes from `start` known to hold no newline.
    scanned: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    Banner,
    Line,
    /// The rest of a line that was reported as too long.
    LongLine,
    Payload {
        id: Option<u64>,
        length: usize,
        header: Vec<u8>,
    },
    /// A payload beyond the limit, dropped as it comes, its newline included.
    Skip {
        left: u64,
    },
}

impl Default for RecordReader {
    fn default() -> Self {
        Self { bytes: Vec::new(), start: 0, scanned: 0, state: State::Banner }
    }
}

impl RecordReader {
    /// A reader that waits for READY.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of an incomplete record held back.
    pub fn buffered(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The next record of the bytes fed so far.
    #[expect(clippy::should_implement_trait, reason = "more may follow after None")]
    pub fn next(&mut self) -> Option<Record> {
        loop {
            match &mut self.state {
                State::Banner => return self.banner(),
                State::Line => {
                    if let Some(record) = self.line()? {
                        return Some(record);
                    }
                }
                State::LongLine => {
                    let rest = &self.bytes[self.start..];
                    let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
                        self.start = self.bytes.len();
                        return None;
                    };
                    self.start += at + 1;
                    self.state = State::Line;
                }
                State::Payload { id, length, header } => {
                    let end = self.start + *length;
                    let (Some(data), Some(close)) =
                        (self.bytes.get(self.start..end), self.bytes.get(end))
                    else {
                        return None;
                    };
                    let closed = *close == b'\n';
                    let record = match (closed, *id) {
                        (true, Some(id)) => Record::Data { id, data: data.to_vec() },
                        (true, None) => malformed(header, "request id is invalid"),
                        (false, _) => malformed(header, "no newline after the payload"),
                    };
                    self.start = end + usize::from(closed);
                    self.state = State::Line;
                    return Some(record);
                }
                State::Skip { left } => {
                    let skipped = ((self.bytes.len() - self.start) as u64).min(*left);
                    self.start += skipped as usize;
                    *left -= skipped;
                    if *left > 0 {
                        return None;
                    }
                    self.state = State::Line;
                }
            }
        }
    }

    fn banner(&mut self) -> Option<Record> {
        loop {
            let rest = &self.bytes[self.start..];
            let Some(at) = find(rest, MARKER) else {
                // What is left may be the beginning of the marker.
                self.start += rest.len().saturating_sub(MARKER.len() - 1);
                return None;
            };
            self.start += at;
            let used = match &rest[at + MARKER.len()..] {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                [] | [b'\r'] => return None,
                _ => {
                    self.start += 1;
                    continue;
                }
            };
            self.start += MARKER.len() + used;
            self.state = State::Line;
            return Some(Record::Ready);
        }
    }

    /// Reads one line. `None`: more bytes are needed. `Some(None)`: a payload follows.
    #[expect(clippy::option_option, reason = "the outer None means wait, as in `next`")]
    fn line(&mut self) -> Option<Option<Record>> {
        let rest = &self.bytes[self.start..];
        let newline = rest[self.scanned..].iter().position(|byte| *byte == b'\n');
        let length = match newline {
            Some(at) => self.scanned + at,
            None => rest.len(),
        };
        if length > MAX_LINE_BYTES {
            let record = malformed(rest, "line is too long");
            self.start += length;
            self.scanned = 0;
            self.state = State::LongLine;
            return Some(Some(record));
        }
        if newline.is_none() {
            self.scanned = length;
            return None;
        }
        let line = rest[..length].strip_suffix(b"\r").unwrap_or(&rest[..length]);
        let (record, state) = match line.strip_prefix(b"DATA ") {
            Some(fields) => data_header(line, fields),
            None => (Some(parse_line(line)), State::Line),
        };
        self.start += length + 1;
        self.scanned = 0;
        self.state = state;
        Some(record)
    }
}

fn find(bytes: &[u8], marker: &[u8]) -> Option<usize> {
    bytes.windows(marker.len()).position(|window| window == marker)
}

fn malformed(line: &[u8], reason: &str) -> Record {
    let line = line[..line.len().min(KEPT_BYTES)].to_vec();
    Record::Malformed { line, reason: reason.to_owned() }
}

fn data_header(line: &[u8], fields: &[u8]) -> (Option<Record>, State) {
    let mut words = Words(fields);
    let id = words.word().and_then(integer);
    match words.word().and_then(integer) {
        Some(length) if length <= MAX_PAYLOAD_BYTES as u64 => {
            let header = line[..line.len().min(KEPT_BYTES)].to_vec();
            (None, State::Payload { id, length: length as usize, header })
        }
        Some(length) if length <= MAX_SKIP_BYTES => {
            (Some(malformed(line, "payload is too long")), State::Skip { left: length + 1 })
        }
        _ => (Some(malformed(line, "payload length is unreadable")), State::Line),
    }
}

fn parse_line(line: &[u8]) -> Record {
    let mut words = Words(line);
    let kind = if line.starts_with(b" ") { None } else { words.word() };
    let parsed = match kind {
        Some(b"STAT") => stat(&mut words),
        Some(b"HWINFO") => hwinfo(&mut words),
        Some(b"GPUS") => gpus(&mut words),
        Some(b"TIERS") => tiers(&mut words),
        Some(b"EMAP") => emap(&mut words),
        Some(b"HITS") => hits(&mut words),
        Some(b"CAPS") => Ok(caps(&mut words)),
        Some(b"ACCEPT") => accept(&mut words),
        Some(b"PREFILL") => prefill(&mut words),
        Some(b"DATA") => Err("payload length is unreadable"),
        Some(b"TOPK") => topk(&mut words),
        Some(b"REPIN") => repin(&mut words),
        Some(b"PERF") => perf(&mut words),
        Some(b"PROF") => prof(&mut words),
        Some(b"ENTROPY") => entropy(&mut words),
        Some(b"DONE") => done(&mut words),
        Some(b"ERROR") => error(&mut words),
        _ => return Record::Unknown(line.to_vec()),
    };
    parsed.unwrap_or_else(|reason| malformed(line, reason))
}

type Parsed<T = Record> = Result<T, &'static str>;

/// The words of a line, separated by runs of spaces.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a [u8]> {
        let from = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = &self.0[from..];
        let length = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        self.0 = &rest[length..];
        Some(&rest[..length])
    }

    fn count(&mut self) -> Parsed<u64> {
        self.word().and_then(integer).ok_or("a count is missing or invalid")
    }

    fn size(&mut self) -> Parsed<usize> {
        usize::try_from(self.count()?).map_err(|_| "a count is too large")
    }

    fn number(&mut self) -> Parsed<f64> {
        self.word().and_then(|word| lenient(word, 0.0)).ok_or("a number is missing or invalid")
    }

    fn has_more(&self) -> bool {
        self.0.iter().any(|byte| *byte != b' ')
    }
}

fn stat_fields(words: &mut Words) -> Parsed<StatRecord> {
    Ok(StatRecord {
        emitted: words.count()?,
        tok_s: words.number()?,
        hit_pct: words.number()?,
        rss_gb: words.number()?,
    })
}

fn turn_fields(stat: StatRecord, words: &mut Words) -> Parsed<TurnRecord> {
    Ok(TurnRecord { stat, prompt_tokens: words.count()?, length_limited: words.count()? != 0 })
}

fn stat(words: &mut Words) -> Parsed {
    let stat = stat_fields(words)?;
    if words.has_more() {
        Ok(Record::TurnStat(turn_fields(stat, words)?))
    } else {
        Ok(Record::Stat(stat))
    }
}

fn hwinfo(words: &mut Words) -> Parsed {
    let mut record = HwInfoRecord {
        cores: words.count()?,
        ram_total_gb: words.number()?,
        ram_avail_gb: words.number()?,
        ngpu: words.count()?,
        vram_total_gb: words.number()?,
        ..HwInfoRecord::default()
    };
    // Names hold spaces, so the rest of the line belongs to them.
    let names = String::from_utf8_lossy(words.0);
    let (cpu, gpu) = names.split_once('|').unwrap_or((&names, ""));
    record.cpu_name = clean_name(cpu);
    record.gpu_name = clean_name(gpu);
    Ok(Record::HwInfo(record))
}

fn gpus(words: &mut Words) -> Parsed {
    let count = words.count()?;
    let mut gpus = Vec::new();
    for _ in 0..count {
        gpus.push(GpuRecord {
            used_gb: words.number()?,
            total_gb: words.number()?,
            experts: words.count()?,
        });
    }
    Ok(Record::Gpus(gpus))
}

fn tiers(words: &mut Words) -> Parsed {
    Ok(Record::Tiers(TiersRecord {
        vram: words.count()?,
        ram: words.count()?,
        disk: words.count()?,
        vram_gb: words.number()?,
        ram_gb: words.number()?,
    }))
}

fn map_fields(words: &mut Words, bytes_of: fn(usize) -> usize) -> Parsed<(usize, usize, Vec<u8>)> {
    let (rows, cols) = (words.size()?, words.size()?);
    let cells = rows.checked_mul(cols).ok_or("the map is too large")?;
    let bytes = parse_hex(words.word().unwrap_or_default()).ok_or("the map is no hex")?;
    if bytes.len() == bytes_of(cells) {
        Ok((rows, cols, bytes))
    } else {
        Err("the map's length does not fit its rows and columns")
    }
}

fn emap(words: &mut Words) -> Parsed {
    let (rows, cols, map) = map_fields(words, |cells| cells)?;
    Ok(Record::Emap { rows, cols, map })
}

fn hits(words: &mut Words) -> Parsed {
    let (rows, cols, hits) = map_fields(words, |cells| cells.div_ceil(8))?;
    Ok(Record::Hits { rows, cols, hits })
}

fn caps(words: &mut Words) -> Record {
    let mut caps = Vec::new();
    while let Some(word) = words.word() {
        let at = word.iter().position(|byte| *byte == b'=');
        let (key, value) = at.map_or((word, &b""[..]), |at| (&word[..at], &word[at + 1..]));
        caps.push((String::from_utf8_lossy(key).into_owned(), percent_decode(value)));
    }
    Record::Caps(caps)
}

fn accept(words: &mut Words) -> Parsed {
    Ok(Record::Accept { id: words.count()?, prompt_tokens: words.count()? })
}

fn prefill(words: &mut Words) -> Parsed {
    Ok(Record::Prefill { id: words.count()?, done: words.count()?, total: words.count()? })
}

fn topk(words: &mut Words) -> Parsed {
    let (id, count) = (words.count()?, words.count()?);
    let mut tokens = Vec::new();
    for _ in 0..count {
        let logprob = words.word().and_then(|word| lenient(word, LEAST_LOGPROB));
        let bytes = match words.word().ok_or("a token is missing")? {
            b"-" => Vec::new(),
            hex => parse_hex(hex).ok_or("a token is no hex")?,
        };
        tokens.push(TopkToken { logprob: logprob.ok_or("a log-probability is invalid")?, bytes });
    }
    Ok(Record::Topk { id, tokens })
}

fn repin(words: &mut Words) -> Parsed {
    Ok(Record::Repin {
        layer: words.count()?,
        expert: words.count()?,
        old_tier: words.count()?,
        gpu: words
            .word()
            .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
            .ok_or("the device is missing or invalid")?,
    })
}

fn perf(words: &mut Words) -> Parsed {
    let id = words.count()?;
    let times = PerfRecord {
        wall_s: words.number()?,
        expert_disk_s: words.number()?,
        expert_wait_s: words.number()?,
        expert_matmul_s: words.number()?,
        attention_s: words.number()?,
        kv_decompress_s: words.number()?,
        head_s: words.number()?,
        more: more_perf(words),
    };
    Ok(Record::Perf { id, times })
}

/// Fields behind the times of PERF, in any order; none unless all but `vram`, `experts_ram`,
/// `drafts` and `drives` are there, since engines may add fields of their own.
fn more_perf(words: &mut Words) -> Option<MorePerf> {
    let mut rest = Vec::new();
    while let Some(word) = words.word() {
        rest.push(word);
    }
    let value = |key: &[u8]| {
        let value = rest.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix(b"="))?;
        Some(Words(value))
    };
    Some(MorePerf {
        ffn_s: value(b"ffn")?.number().ok()?,
        reading_s: value(b"reading")?.number().ok()?,
        uses_ahead: value(b"ahead")?.count().ok()?,
        uses_cached: value(b"cached")?.count().ok()?,
        uses_missed: value(b"missed")?.count().ok()?,
        bytes_read: value(b"read")?.count().ok()?,
        uses_vram: match value(b"vram") {
            Some(mut word) => Some(word.count().ok()?),
            None => None,
        },
        experts_ram: value(b"experts_ram").and_then(|mut word| word.count().ok()),
        drafts: value(b"drafts").and_then(|Words(word)| {
            let colon = word.iter().position(|&byte| byte == b':')?;
            Some((integer(&word[..colon])?, integer(&word[colon + 1..])?))
        }),
        drives: value(b"drives").and_then(|Words(word)| drives(word)).unwrap_or_default(),
    })
}

/// `drives` of PERF; nothing if any part of it is malformed.
fn drives(word: &[u8]) -> Option<Vec<DriveRecord>> {
    let drive = |text: &[u8]| {
        let parts: Vec<&[u8]> = text.split(|&byte| byte == b':').collect();
        let (numbers, is_dropped) = match &parts[..] {
            [numbers @ .., b"dropped"] => (numbers, true),
            numbers => (numbers, false),
        };
        let &[number, bytes, rate] = numbers else { return None };
        let (number, bytes, rate) = (integer(number)?, integer(bytes)?, integer(rate)?);
        Some(DriveRecord { number, bytes, rate, is_dropped })
    };
    word.split(|&byte| byte == b',').map(drive).collect()
}

fn prof(words: &mut Words) -> Parsed {
    Ok(Record::Prof(ProfRecord {
        wall_s: words.number()?,
        prompt_tokens: words.count()?,
        emitted: words.count()?,
        expert_disk_s: words.number()?,
        expert_wait_s: words.number()?,
        expert_matmul_s: words.number()?,
        attention_s: words.number()?,
        head_s: words.number()?,
        forwards: words.count()?,
    }))
}

fn entropy(words: &mut Words) -> Parsed {
    let mut bits = Vec::new();
    while words.has_more() {
        bits.push(words.number()?);
    }
    Ok(Record::Entropy(bits))
}

fn done(words: &mut Words) -> Parsed {
    let id = words.count()?;
    if words.word() != Some(b"STAT") {
        return Err("STAT is missing");
    }
    let stat = stat_fields(words)?;
    // A four-field STAT, as some engines end a turn with, still ends it.
    let turn = if words.has_more() {
        turn_fields(stat, words)?
    } else {
        TurnRecord { stat, ..TurnRecord::default() }
    };
    Ok(Record::Done { id, turn })
}

fn error(words: &mut Words) -> Parsed {
    let id = words.count()?;
    let code = String::from_utf8_lossy(words.word().ok_or("the code is missing")?).into_owned();
    let mut detail = Vec::new();
    while let Some(word) = words.word() {
        detail.push(percent_decode(word));
    }
    Ok(Record::Error { id, code, detail })
}
