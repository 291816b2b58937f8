use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use crate::kv::saver::Saver;
use crate::kv::tests::{LAYOUTS, assert_holds, compute};

const CTX: usize = 2000;

fn format() -> Format {
    Format::new([7; 32], LAYOUTS.to_vec())
}

/// A saver in `dir`, the conversations it found, and what it told.
fn start(dir: &Path, slots: usize, ctx: usize) -> (Saver, Vec<KvSlot>, Vec<String>) {
    let mut found: Vec<KvSlot> = (0..slots).map(|_| KvSlot::new(&LAYOUTS)).collect();
    let mut notices = Vec::new();
    let saver = Saver::start(dir, format(), &mut found, ctx, &mut notices, &mut |_, _| {});
    (saver.expect("the folder is ours"), found, notices)
}

fn save(saver: &mut Saver, slot: &KvSlot) {
    let ticket = saver.save(0, slot);
    saver.wait_for(ticket);
    assert_eq!(saver.held_bytes(), 0);
}

/// Lets `slot` go on to `tokens` from what it has in common with them.
fn turn(slot: &mut KvSlot, tokens: &[u32]) {
    let common = slot.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let start = slot.truncate_to(common.min(tokens.len() - 1));
    compute(slot, tokens, start);
    slot.commit(&tokens[start..]);
}

/// The same in steps of `chunk` tokens, of which what is complete is written ahead of the end.
fn long_turn(saver: &mut Saver, slot: &mut KvSlot, tokens: &[u32], chunk: usize) {
    let mut last = None;
    loop {
        let known = slot.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
        turn(slot, &tokens[..(known + chunk).min(tokens.len())]);
        if saver.blocks_ahead(0, slot.tokens().len()) > 0 {
            last = Some(saver.save_ahead(0, slot, tokens.len()));
        }
        if slot.tokens() == tokens {
            break;
        }
    }
    // Some turns end while it is being written.
    if let Some(ticket) = last.filter(|_| chunk.is_multiple_of(2)) {
        saver.wait_for(ticket);
    }
}

fn story(n: usize, kind: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i * 31 % 97 + kind).collect()
}

/// A file of a conversation of two turns, the second of which went back a little.
fn file_of_two_turns(dir: &Path) -> (Vec<u8>, Vec<u32>) {
    let (mut saver, mut slots, notices) = start(dir, 1, CTX);
    assert!(notices.is_empty());
    turn(&mut slots[0], &story(300, 0));
    save(&mut saver, &slots[0]);
    let tokens: Vec<u32> = story(290, 0).into_iter().chain(story(90, 5)).collect();
    turn(&mut slots[0], &tokens);
    save(&mut saver, &slots[0]);
    saver.finish();
    (fs::read(path(dir, 0)).expect("a file"), tokens)
}

/// What is read of a file of these bytes, and what is wrong behind that.
fn read(
    dir: &Path,
    bytes: &[u8],
    format: &Format,
) -> Result<(KvSlot, Option<&'static str>), String> {
    let path = dir.join("other");
    fs::write(&path, bytes).expect("room");
    let mut slot = KvSlot::new(&LAYOUTS);
    let loaded = format.read(&path, &mut slot, CTX, &mut |_, _| {})?.expect("it is there");
    Ok((slot, loaded.fault))
}

#[test]
fn a_file_that_ends_anywhere_holds_what_was_written_before() {
    let dir = tempfile::tempdir().expect("a folder");
    let (bytes, tokens) = file_of_two_turns(dir.path());
    let mut lengths = Vec::new();
    for end in (HEADER_BYTES as usize..bytes.len()).chain([bytes.len()]) {
        // Every byte near the borders of records, some of those within.
        if end % 97 > 3 && end + 100 < bytes.len() {
            continue;
        }
        let (slot, fault) = read(dir.path(), &bytes[..end], &format()).expect("readable");
        let known = slot.tokens().to_vec();
        assert!(known == tokens[..known.len().min(tokens.len())] || known == story(known.len(), 0));
        assert_holds(&slot, &known);
        assert!(fault.is_none() || (end < bytes.len() && fault == Some("ends within a turn")));
        lengths.push(known.len());
    }
    assert_eq!(*lengths.last().expect("some"), tokens.len());
    // The state after 300 tokens is gone, the one before is known.
    assert!(lengths.contains(&0) && lengths.contains(&256));
    assert!(read(dir.path(), &bytes[..79], &format()).is_err());
    assert!(read(dir.path(), &[], &format()).is_err());
}

#[test]
fn no_byte_can_be_changed_unnoticed() {
    let dir = tempfile::tempdir().expect("a folder");
    let (bytes, tokens) = file_of_two_turns(dir.path());
    let mut lengths = Vec::new();
    for at in (0..200).chain((200..bytes.len()).step_by(61)).chain(bytes.len() - 60..bytes.len()) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let found = read(dir.path(), &changed, &format());
        if at < HEADER_BYTES as usize {
            assert!(found.is_err(), "byte {at}");
            continue;
        }
        let (slot, fault) = found.expect("what was written before is of use");
        assert_eq!(fault, Some("is damaged"), "byte {at}");
        let known = slot.tokens().to_vec();
        assert!(known == tokens[..known.len()] || known == story(known.len(), 0));
        assert_holds(&slot, &known);
        lengths.push(known.len());
    }
    assert!(lengths.is_sorted() && lengths[0] == 0, "more is of use the later the damage");
    assert!(*lengths.last().expect("some") >= 256);
    // Records of other files, or of other places, and what a drive leaves that lost its power.
    for more in [bytes[80..].to_vec(), vec![0; 4096], vec![255; 40]] {
        let longer = [&bytes[..], &more].concat();
        let (slot, fault) = read(dir.path(), &longer, &format()).expect("of use");
        assert_eq!(fault, Some("is damaged"));
        assert_holds(&slot, &tokens);
    }
}

#[test]
fn a_file_of_another_model_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (bytes, _) = file_of_two_turns(dir.path());
    let other = Format::new([8; 32], LAYOUTS.to_vec());
    let error = read(dir.path(), &bytes, &other).err().expect("refused");
    assert!(error.starts_with("it is of another model"), "{error}");
    let mut newer = bytes.clone();
    newer[8] = 2;
    let error = read(dir.path(), &newer, &format()).err().expect("refused");
    assert_eq!(error, "it is of version 2, not 1");
    let error = read(dir.path(), b"-1 5 3\n-2 1 1\n1 1 1\n".repeat(9).as_slice(), &format());
    assert_eq!(error.err().expect("refused"), "it is no file of conversations");
}

#[test]
fn records_that_are_none_are_refused_though_their_checksums_are_right() {
    let dir = tempfile::tempdir().expect("a folder");
    let (header, check) = format().header();
    for (kind, start, count) in [
        (0, 0, 1),
        (3, 0, 1),
        (POSITIONS, 0, 0),
        (POSITIONS, 1, 1),
        (POSITIONS, 0, RECORD_TOKENS + 1),
        (POSITIONS, u32::MAX as usize, u32::MAX as usize),
        (STATES, 0, 0),
        (STATES, 1, 0),
        (STATES, 0, 1),
    ] {
        let bytes: Vec<u8> =
            header.iter().copied().chain(head(&check, kind, start, count)).chain([0; 64]).collect();
        let (slot, fault) = read(dir.path(), &bytes, &format()).expect("an empty one");
        assert_eq!(fault, Some("is damaged"), "{kind} {start} {count}");
        assert_holds(&slot, &[]);
    }
}

#[test]
fn what_exceeds_the_context_is_cut_and_the_rest_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, tokens) = file_of_two_turns(dir.path());
    let (mut saver, mut slots, notices) = start(dir.path(), 1, 200);
    assert!(notices.is_empty(), "{notices:?}");
    let known = slots[0].tokens().to_vec();
    assert!(known.len() > 100 && known.len() <= 200, "{}", known.len());
    assert_eq!(known, tokens[..known.len()]);
    assert_holds(&slots[0], &known);
    turn(&mut slots[0], &tokens[..150]);
    save(&mut saver, &slots[0]);
    let other: Vec<u32> = tokens[..150].iter().copied().chain([1, 2, 3]).collect();
    turn(&mut slots[0], &other);
    save(&mut saver, &slots[0]);
    saver.finish();
    let (saver, slots, notices) = start(dir.path(), 1, CTX);
    assert!(notices.is_empty(), "{notices:?}");
    assert_holds(&slots[0], &other);
    saver.finish();
}

#[test]
fn only_what_is_new_is_written_and_files_are_bounded() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut saver, mut slots, _) = start(dir.path(), 1, CTX);
    let bytes = || fs::metadata(path(dir.path(), 0)).expect("a file").len();
    turn(&mut slots[0], &story(1000, 0));
    save(&mut saver, &slots[0]);
    let before = bytes();
    turn(&mut slots[0], &story(1003, 0));
    save(&mut saver, &slots[0]);
    assert!(bytes() < before + 1000, "three tokens and two states");
    let before = bytes();
    save(&mut saver, &slots[0]);
    assert_eq!(bytes(), before);
    // Ever the same tail is replaced: without an end to it the file would have 60 MB.
    for round in 0..400 {
        let tokens: Vec<u32> = story(900, 0).into_iter().chain(story(900, round)).collect();
        turn(&mut slots[0], &tokens);
        save(&mut saver, &slots[0]);
    }
    let whole = 1800 * format().token_bytes() + 20 * 80 + 16 * format().states_bytes();
    assert!(bytes() < 2 * whole + SLACK_BYTES, "{}", bytes());
    let tokens = slots[0].tokens().to_vec();
    saver.finish();
    let (saver, slots, notices) = start(dir.path(), 1, CTX);
    assert!(notices.is_empty(), "{notices:?}");
    assert_holds(&slots[0], &tokens);
    saver.finish();
}

#[test]
fn whole_blocks_are_written_before_a_turn_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut saver, mut slots, _) = start(dir.path(), 1, CTX);
    let bytes = || fs::metadata(path(dir.path(), 0)).expect("a file").len();
    turn(&mut slots[0], &story(600, 0));
    assert_eq!(saver.blocks_ahead(0, 600), 2);
    let ticket = saver.save_ahead(0, &slots[0], 1000);
    saver.wait_for(ticket);
    // Of its states those that a conversation of 1000 tokens has, at 512 and a multiple of 64.
    let ahead = HEADER_BYTES
        + format().record_bytes(Part::Positions { start: 0, end: 256 }) * 2
        + format().record_bytes(Part::States(512));
    assert_eq!(bytes(), ahead);
    assert_eq!(saver.blocks_ahead(0, 767), 0);
    turn(&mut slots[0], &story(1000, 0));
    assert_eq!(saver.blocks_ahead(0, 1000), 1);
    save(&mut saver, &slots[0]);
    let ended = bytes();
    let written = fs::read(path(dir.path(), 0)).expect("a file");
    saver.finish();
    // Nothing was written twice.
    let (mut saver, mut slots, _) = start(dir.path(), 1, CTX);
    fs::remove_file(path(dir.path(), 0)).expect("it was written");
    save(&mut saver, &slots[0]);
    assert!(ended < bytes() + 3 * 56, "{ended} of {}", bytes());
    saver.finish();
    // Killed before the end, or amid a record.
    for (len, known) in [(ahead, 512), (ahead + 700, 512), (ended - 1, 960), (ended, 1000)] {
        let (slot, _) = read(dir.path(), &written[..len as usize], &format()).expect("readable");
        assert_holds(&slot, &story(known, 0));
    }
    // One that goes back, and on from there.
    turn(&mut slots[0], &story(100, 1));
    let (mut saver, ..) = start(dir.path(), 1, CTX);
    turn(&mut slots[0], &story(300, 1));
    assert_eq!(saver.blocks_ahead(0, 300), 1);
    let ticket = saver.save_ahead(0, &slots[0], 300);
    saver.wait_for(ticket);
    saver.finish();
    let (saver, slots, _) = start(dir.path(), 1, CTX);
    assert_holds(&slots[0], &story(256, 1));
    saver.finish();
}

#[test]
fn a_folder_serves_one_engine_and_files_are_for_nobody_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut saver, mut slots, _) = start(dir.path(), 2, CTX);
    turn(&mut slots[1], &story(20, 0));
    let ticket = saver.save(1, &slots[1]);
    saver.wait_for(ticket);
    assert!(!path(dir.path(), 0).exists(), "there is nothing to keep");
    let second = Saver::start(
        dir.path(),
        format(),
        &mut [KvSlot::new(&LAYOUTS)],
        CTX,
        &mut Vec::new(),
        &mut |_, _| {},
    );
    let reason = second.err().expect("refused");
    assert!(reason.starts_with("another engine keeps its own in "), "{reason}");
    saver.finish();
    let mode = |name: &str| {
        fs::metadata(dir.path().join(name)).expect("a file").permissions().mode() & 0o777
    };
    assert_eq!((mode(".coli_kv.1"), mode(LOCK_NAME)), (0o600, 0o600));
    fs::set_permissions(path(dir.path(), 1), Permissions::from_mode(0o644)).expect("ours");
    let (saver, slots, notices) = start(dir.path(), 2, CTX);
    assert_holds(&slots[1], &story(20, 0));
    assert!(notices.is_empty() && mode(".coli_kv.1") == 0o600);
    saver.finish();
}

const LOCK_NAME: &str = ".coli_kv.lock";

#[test]
fn what_is_no_file_is_replaced_and_left_alone_otherwise() {
    let dir = tempfile::tempdir().expect("a folder");
    let (elsewhere, kv) = (dir.path().join("elsewhere"), path(dir.path(), 0));
    fs::write(&elsewhere, "somebody's").expect("room");
    symlink(&elsewhere, &kv).expect("a link");
    let (mut saver, mut slots, notices) = start(dir.path(), 1, CTX);
    assert!(notices.len() == 1 && notices[0].ends_with("it is a symbolic link"), "{notices:?}");
    turn(&mut slots[0], &story(20, 0));
    save(&mut saver, &slots[0]);
    saver.finish();
    assert_eq!(fs::read(&elsewhere).expect("a file"), b"somebody's");
    assert!(!kv.is_symlink());
    let (saver, slots, notices) = start(dir.path(), 1, CTX);
    assert!(notices.is_empty());
    assert_holds(&slots[0], &story(20, 0));
    saver.finish();

    fs::remove_file(&kv).expect("ours");
    fs::create_dir(&kv).expect("a folder");
    let (mut saver, mut slots, notices) = start(dir.path(), 1, CTX);
    assert!(notices.len() == 1 && notices[0].ends_with("it is no regular file"), "{notices:?}");
    // It cannot be replaced; that is told, and nobody waits for ever.
    turn(&mut slots[0], &story(20, 0));
    save(&mut saver, &slots[0]);
    save(&mut saver, &slots[0]);
    saver.finish();
    assert!(kv.is_dir());
}

#[test]
fn a_file_that_went_away_is_written_anew() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut saver, mut slots, _) = start(dir.path(), 1, CTX);
    for (n, change) in [(300, true), (310, false), (320, true)] {
        turn(&mut slots[0], &story(n, 0));
        save(&mut saver, &slots[0]);
        if change {
            fs::remove_file(path(dir.path(), 0)).expect("it was written");
        } else {
            fs::write(path(dir.path(), 0), "short").expect("room");
        }
    }
    turn(&mut slots[0], &story(330, 0));
    save(&mut saver, &slots[0]);
    saver.finish();
    let (saver, slots, notices) = start(dir.path(), 1, CTX);
    assert!(notices.is_empty(), "{notices:?}");
    assert_holds(&slots[0], &story(330, 0));
    saver.finish();
}

/// What happens to a conversation: it goes back to so many tokens and on by so many others, so many
/// at a time.
fn changes() -> impl Strategy<Value = Vec<(usize, usize, u32, usize, bool)>> {
    let change = (0..1200usize, 1..800usize, 0..3u32, 30..900usize, any::<bool>());
    prop::collection::vec(change, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_happens_to_a_conversation_the_file_holds_it(changes in changes(), torn in any::<u16>()) {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut saver, mut slots, _) = start(dir.path(), 1, CTX);
        for (back, on, kind, chunk, restarted) in changes {
            let back = back.min(slots[0].tokens().len());
            let mut tokens = slots[0].tokens()[..back].to_vec();
            tokens.extend(story(on, kind));
            long_turn(&mut saver, &mut slots[0], &tokens, chunk);
            save(&mut saver, &slots[0]);
            if restarted {
                saver.finish();
                let notices;
                (saver, slots, notices) = start(dir.path(), 1, CTX);
                prop_assert!(notices.is_empty(), "{:?}", notices);
                assert_holds(&slots[0], &tokens);
            }
        }
        saver.finish();
        let bytes = fs::read(path(dir.path(), 0)).expect("a file");
        let end = (bytes.len() - HEADER_BYTES as usize) * torn as usize / u16::MAX as usize;
        let (slot, _) = read(dir.path(), &bytes[..HEADER_BYTES as usize + end], &format())
            .map_err(TestCaseError::fail)?;
        assert_holds(&slot, slot.tokens());
    }
}
