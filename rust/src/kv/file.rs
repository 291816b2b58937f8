//! `.coli_kv`: a conversation as a file, from one run to the next.
//!
//! A header, then records, each with a checksum that covers all before it too. A record holds the
//! keys and values of some tokens, or the recurrent states after so many. The tokens of one that
//! begins within what is there already replace what lies behind, so whatever the last whole record
//! is, what the file holds up to it is a conversation: there is nothing else to commit. See
//! `docs/design/0017-kv-files.md`.

use std::fs::{File, Permissions};
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::{KvSlot, LayerLayout, LayerMemory};
use crate::error::Result;
use crate::kernels::CONTRACT;

const MAGIC: [u8; 8] = *b"coli_kv\0";
const VERSION: u32 = 1;
/// Magic, version, version of the numeric contract, identity, checksum.
pub(super) const HEADER_BYTES: u64 = 80;
/// Kind, start, count, nothing; checksum of these.
const HEAD_BYTES: usize = 24;
/// The checksum behind a record.
const CHECK_BYTES: usize = 32;
/// Most tokens of a record.
const RECORD_TOKENS: usize = 256;
const POSITIONS: u32 = 1;
const STATES: u32 = 2;
/// Bytes of a file that are of no use any more before it is written anew, besides as many as are.
const SLACK_BYTES: u64 = 4 << 20;

type Check = [u8; CHECK_BYTES];

/// What the conversations of one model look like in a file.
#[derive(Clone, Debug)]
pub struct Format {
    identity: [u8; 32],
    layouts: Vec<LayerLayout>,
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The tokens from `start` up to `end`, with their keys and values.
    Positions { start: usize, end: usize },
    /// The states after so many tokens.
    States(usize),
}

/// A record in a file.
struct Entry {
    part: Part,
    /// Where it ends.
    end: u64,
    check: Check,
}

/// What a file holds.
pub(super) struct Contents {
    header: Check,
    entries: Vec<Entry>,
    pub(super) tokens: Vec<u32>,
    states: Vec<usize>,
}

impl Contents {
    fn new(header: Check) -> Self {
        Self { header, entries: Vec::new(), tokens: Vec::new(), states: Vec::new() }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.last().map_or(HEADER_BYTES, |entry| entry.end)
    }

    fn check(&self) -> Check {
        self.entries.last().map_or(self.header, |entry| entry.check)
    }

    fn push(&mut self, part: Part, tokens: &[u32], end: u64, check: Check) {
        match part {
            Part::Positions { start, .. } => {
                self.tokens.truncate(start);
                self.tokens.extend_from_slice(tokens);
                self.states.retain(|&known| known <= start);
            }
            Part::States(known) => self.states.push(known),
        }
        self.entries.push(Entry { part, end, check });
    }

    /// How many tokens it has in common with `slot`.
    fn common(&self, slot: &KvSlot) -> usize {
        self.tokens.iter().zip(slot.tokens()).take_while(|(a, b)| a == b).count()
    }

    /// What is to be appended of a conversation that goes on, of which `slot` is the beginning. If
    /// there is any, the contents are cut to what `slot` keeps of them; else they may be more of the
    /// same conversation, which stays.
    pub(super) fn lacks(&mut self, slot: &KvSlot) -> Vec<Part> {
        let common = self.common(slot);
        if common == slot.tokens().len() {
            return Vec::new();
        }
        self.cut(common);
        missing(slot, common, &self.states)
    }

    /// Takes away records of nothing but what lies behind the first `len` tokens.
    pub(super) fn cut(&mut self, len: usize) {
        let behind = |entry: &Entry| match entry.part {
            Part::Positions { start, .. } => start >= len,
            Part::States(known) => known > len,
        };
        while self.entries.pop_if(|entry| behind(entry)).is_some() {}
        // What a record that is kept holds behind that is replaced by the next, which begins there.
        self.tokens.truncate(len);
        self.states.retain(|&known| known <= len);
    }
}

/// The conversation of a file, and what was found out about it.
pub(super) struct Loaded {
    pub(super) contents: Contents,
    /// What there is behind it that is of no use: the beginning of a record, as after a kill, or what
    /// was not written so.
    pub(super) fault: Option<&'static str>,
}

impl Format {
    /// For the model that `identity` names, with these layers.
    pub fn new(identity: [u8; 32], layouts: Vec<LayerLayout>) -> Self {
        Self { identity, layouts }
    }

    /// An empty conversation.
    pub(super) fn empty_slot(&self) -> KvSlot {
        KvSlot::new(&self.layouts)
    }

    fn header(&self) -> (Vec<u8>, Check) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(CONTRACT.to_le_bytes());
        bytes.extend(self.identity);
        let check = *blake3::hash(&bytes).as_bytes();
        bytes.extend(check);
        (bytes, check)
    }

    /// Bytes of a token's keys and values in a file, with its number.
    pub(super) fn token_bytes(&self) -> u64 {
        let bytes = self.layouts.iter().map(|layout| match layout {
            LayerLayout::Positions(kv) => kv.stored_bytes(),
            LayerLayout::State(_) => 0,
        });
        4 + bytes.sum::<usize>() as u64
    }

    /// Bytes of the states of all layers.
    fn states_bytes(&self) -> u64 {
        let floats = self.layouts.iter().map(|layout| match layout {
            LayerLayout::Positions(_) => 0,
            LayerLayout::State(state) => state.elements(),
        });
        4 * floats.sum::<usize>() as u64
    }

    fn record_bytes(&self, part: Part) -> u64 {
        let payload = match part {
            Part::Positions { start, end } => (end - start) as u64 * self.token_bytes(),
            Part::States(_) => self.states_bytes(),
        };
        (HEAD_BYTES + CHECK_BYTES) as u64 + payload
    }

    /// What is to be appended to a file with `contents`, which are cut to what `slot` keeps of them;
    /// none if the file should rather be written anew.
    pub(super) fn continuation(&self, contents: &mut Contents, slot: &KvSlot) -> Option<Vec<Part>> {
        let common = contents.common(slot);
        contents.cut(common);
        let parts = missing(slot, common, &contents.states);
        let added: u64 = parts.iter().map(|&part| self.record_bytes(part)).sum();
        let whole: u64 =
            missing(slot, 0, &[]).into_iter().map(|part| self.record_bytes(part)).sum();
        let is_bounded = contents.bytes() + added <= 2 * whole + SLACK_BYTES;
        is_bounded.then_some(parts)
    }

    /// Appends the record of a `part` of `slot` by way of `write`; `contents` are up to date if all
    /// went well, and as they were if not.
    ///
    /// # Errors
    /// Those of `write`.
    pub(super) fn append(
        &self,
        contents: &mut Contents,
        slot: &KvSlot,
        part: Part,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (kind, start, end) = match part {
            Part::Positions { start, end } => (POSITIONS, start, end),
            Part::States(known) => (STATES, known, known),
        };
        let head = head(&contents.check(), kind, start, end - start);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&contents.check()).update(&head);
        write(&head)?;
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            write(bytes)
        };
        let tokens = &slot.tokens()[start..end];
        put(bytemuck::cast_slice(tokens))?;
        for layer in &slot.layers {
            match layer {
                LayerMemory::Positions(kv) if kind == POSITIONS => {
                    put(kv.stored(start..end).bytes())?;
                }
                LayerMemory::State(state) if kind == STATES => {
                    put(bytemuck::cast_slice(state.after(start)))?;
                }
                _ => {}
            }
        }
        let check = *hasher.finalize().as_bytes();
        write(&check)?;
        contents.push(part, tokens, contents.bytes() + self.record_bytes(part), check);
        Ok(())
    }

    /// Writes a whole file of `slot` by way of `write`; what it holds then.
    ///
    /// # Errors
    /// Those of `write`.
    pub(super) fn write_whole(
        &self,
        slot: &KvSlot,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Contents> {
        let (header, check) = self.header();
        write(&header)?;
        let mut contents = Contents::new(check);
        for part in missing(slot, 0, &[]) {
            self.append(&mut contents, slot, part, write)?;
        }
        Ok(contents)
    }

    /// Reads the file `path` into `slot`, which is empty, as far as `ctx` tokens; none if there is no
    /// such file. `progress` gets bytes read and in all.
    ///
    /// # Errors
    /// Why the file is of no use. What `slot` holds is of no use then either.
    pub(super) fn read(
        &self,
        path: &Path,
        slot: &mut KvSlot,
        ctx: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Loaded>, String> {
        let Some(file) = open(path)? else { return Ok(None) };
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let mut reader = Reader { input: BufReader::with_capacity(1 << 20, file), read: 0 };
        let header = self.read_header(&mut reader)?;
        let mut contents = Contents::new(header);
        let fault = loop {
            if reader.read == length || slot.tokens().len() == ctx {
                break None;
            }
            match self.read_record(&mut reader, &mut contents, slot, ctx) {
                Ok(()) => progress(reader.read, length),
                Err(Fault::Torn) => break Some("ends within a turn"),
                Err(Fault::Damaged) => break Some("is damaged"),
                Err(Fault::Io(reason)) => return Err(reason),
            }
        };
        slot.truncate_to(slot.tokens().len());
        Ok(Some(Loaded { contents, fault }))
    }

    fn read_header(&self, reader: &mut Reader) -> Result<Check, String> {
        let mut found = [0; HEADER_BYTES as usize];
        reader.fill(&mut found).map_err(|fault| match fault {
            Fault::Io(reason) => reason,
            Fault::Torn | Fault::Damaged => "it ends within its header".into(),
        })?;
        let (expected, check) = self.header();
        if found[..8] != MAGIC {
            return Err("it is no file of conversations".into());
        }
        let version = u32_at(&found, 8);
        if version != VERSION {
            return Err(format!("it is of version {version}, not {VERSION}"));
        }
        if *blake3::hash(&found[..48]).as_bytes() != found[48..] {
            return Err("its header is damaged".into());
        }
        if found != expected[..] {
            return Err(
                "it is of another model, or of another version of it or of colibri, or was \
                        kept by another COLIBRI_KV or COLIBRI_SPECULATE"
                    .into(),
            );
        }
        Ok(check)
    }

    fn read_record(
        &self,
        reader: &mut Reader,
        contents: &mut Contents,
        slot: &mut KvSlot,
        ctx: usize,
    ) -> Result<(), Fault> {
        let before = contents.check();
        let mut found = [0; HEAD_BYTES];
        reader.fill(&mut found)?;
        let [kind, start, count] = [0, 4, 8].map(|at| u32_at(&found, at));
        if found != head(&before, kind, start as usize, count as usize) {
            return Err(Fault::Damaged);
        }
        let (start, count) = (start as usize, count as usize);
        let has_states = self.states_bytes() > 0;
        let part = match kind {
            POSITIONS if start <= contents.tokens.len() && (1..=RECORD_TOKENS).contains(&count) => {
                Part::Positions { start, end: start + count }
            }
            STATES if has_states && count == 0 && (1..=contents.tokens.len()).contains(&start) => {
                Part::States(start)
            }
            _ => return Err(Fault::Damaged),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&before).update(&found);
        let mut take = |bytes: &mut [u8]| -> Result<(), Fault> {
            reader.fill(bytes)?;
            hasher.update(bytes);
            Ok(())
        };
        let mut tokens = vec![0u32; count];
        take(bytemuck::cast_slice_mut(&mut tokens))?;
        if kind == POSITIONS {
            slot.cut(start);
        }
        // What exceeds the context is read, since the checksum covers it, and not kept.
        let kept = count.min(ctx.saturating_sub(start));
        let mut states = Vec::new();
        for layer in &mut slot.layers {
            match layer {
                LayerMemory::Positions(kv) if kind == POSITIONS => {
                    let mut rows = kv.unread(count);
                    take(rows.bytes_mut())?;
                    kv.restore(start, kept, &rows);
                }
                LayerMemory::State(state) if kind == STATES => {
                    let mut floats = vec![0.0; state.elements()];
                    take(bytemuck::cast_slice_mut(&mut floats))?;
                    states.push(floats);
                }
                _ => {}
            }
        }
        let mut check = [0; CHECK_BYTES];
        reader.fill(&mut check)?;
        if *hasher.finalize().as_bytes() != check {
            return Err(Fault::Damaged);
        }
        match part {
            Part::Positions { .. } => slot.commit(&tokens[..kept]),
            Part::States(known) if known <= slot.tokens().len() => slot.restore(known, states),
            // It is behind the context.
            Part::States(_) => {}
        }
        contents.push(part, &tokens, reader.read, check);
        Ok(())
    }
}

/// The records that are missing where a file has `contents`, which is cut to what it has in common
/// with `slot`: that many tokens.
fn missing(slot: &KvSlot, common: usize, states: &[usize]) -> Vec<Part> {
    let known = slot.known_states().into_iter().filter(|n| !states.contains(n));
    let (before, behind): (Vec<usize>, Vec<usize>) = known.partition(|&n| n <= common);
    let mut parts: Vec<Part> = before.into_iter().map(Part::States).collect();
    let mut start = common;
    for known in behind.iter().copied().chain([slot.tokens().len()]) {
        while start < known {
            let end = known.min(start + RECORD_TOKENS);
            parts.push(Part::Positions { start, end });
            start = end;
        }
        if behind.contains(&known) {
            parts.push(Part::States(known));
        }
    }
    parts.dedup();
    parts
}

/// Why a record cannot be taken.
enum Fault {
    /// The file ends within it.
    Torn,
    /// It is not what was written.
    Damaged,
    Io(String),
}

struct Reader {
    input: BufReader<File>,
    read: u64,
}

impl Reader {
    fn fill(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        self.input.read_exact(out).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Fault::Torn,
            _ => Fault::Io(error.to_string()),
        })?;
        self.read += out.len() as u64;
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(word)
}

/// The first bytes of a record behind a checksum of `before`.
fn head(before: &Check, kind: u32, start: usize, count: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    for (bytes, number) in head.chunks_exact_mut(4).zip([kind, start as u32, count as u32]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(&head[..16]);
    head[16..].copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    head
}

/// Opens a file for nobody but us to read; none if there is none.
fn open(path: &Path) -> Result<Option<File>, String> {
    let mut options = std::fs::OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(_) if path.is_symlink() => return Err("it is a symbolic link".into()),
        Err(e) => return Err(e.to_string()),
    };
    let metadata = file.metadata().map_err(|e| e.to_string())?;
    if !metadata.is_file() {
        return Err("it is no regular file".into());
    }
    if metadata.permissions().mode() & 0o777 != 0o600 {
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(|e| format!("others may read or write it: {e}"))?;
    }
    Ok(Some(file))
}

/// The file of the conversation in `slot`.
pub(super) fn path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(name(slot))
}

/// Its name.
pub(super) fn name(slot: usize) -> String {
    if slot == 0 { ".coli_kv".into() } else { format!(".coli_kv.{slot}") }
}

#[cfg(test)]
mod tests;
