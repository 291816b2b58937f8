//! What the engine takes, refuses and gives up on.

use super::*;

fn reader() -> RequestReader {
    RequestReader::new(&OPTION_NAMES, 2)
}

fn all(reader: &mut RequestReader) -> Vec<Incoming> {
    std::iter::from_fn(|| reader.next()).collect()
}

fn parse(bytes: &[u8]) -> Vec<Incoming> {
    let mut reader = reader();
    reader.feed(bytes);
    reader.finish();
    all(&mut reader)
}

fn refused(id: u64, detail: &str) -> Incoming {
    Incoming::Refused { id, detail: detail.to_owned() }
}

fn is_lost(incoming: &Incoming, id: u64) -> bool {
    matches!(incoming, Incoming::Lost { id: of, .. } if *of == id)
}

fn submit(id: u64, payload: &[u8]) -> Submit {
    Submit {
        id,
        slot: 1,
        max_tokens: 8,
        temperature: 0.7,
        top_p: 0.95,
        options: SubmitOptions::default(),
        payload: payload.to_vec(),
    }
}

#[test]
fn reads_the_three_commands() {
    let read = parse(b"SUBMIT 5 1 5 8 0.7 0.95\nhello\nSTOP 5\nCANCEL 6\n");
    let expected =
        [Incoming::Submit(Box::new(submit(5, b"hello"))), Incoming::Stop(5), Incoming::Cancel(6)];
    assert_eq!(read, expected);
}

#[test]
fn tolerates_runs_of_spaces_and_one_carriage_return() {
    let read = parse(b"SUBMIT   5  1 5  8 7e-1   .95  \r\nhello\nCANCEL  6 \r\n");
    assert_eq!(read, [Incoming::Submit(Box::new(submit(5, b"hello"))), Incoming::Cancel(6)]);
}

#[test]
fn each_wrong_field_is_refused_and_the_stream_stays_in_sync() {
    for (header, id) in [
        ("SUBMIT 0 0 9 8 0 1", 0),
        ("SUBMIT -1 0 9 8 0 1", 0),
        ("SUBMIT x 0 9 8 0 1", 0),
        ("SUBMIT 18446744073709551616 0 9 8 0 1", 0),
        ("SUBMIT 4 2 9 8 0 1", 4),
        ("SUBMIT 4 -1 9 8 0 1", 4),
        ("SUBMIT 4 18446744073709551615 9 8 0 1", 4),
        ("SUBMIT 4 0 9 0 0 1", 4),
        ("SUBMIT 4 0 9 2147483648 0 1", 4),
        ("SUBMIT 4 0 9 1.5 0 1", 4),
        ("SUBMIT 4 0 9 8 -0 1", 4),
        ("SUBMIT 4 0 9 8 2.01 1", 4),
        ("SUBMIT 4 0 9 8 nan 1", 4),
        ("SUBMIT 4 0 9 8 0x1p0 1", 4),
        ("SUBMIT 4 0 9 8 0 0", 4),
        ("SUBMIT 4 0 9 8 0 1e-999", 4),
        ("SUBMIT 4 0 9 8 0 1.01", 4),
        ("SUBMIT 4 0 9 8 0 inf", 4),
        ("SUBMIT 4 0 9 8 0", 4),
        ("SUBMIT 4 0 9", 4),
        ("SUBMIT 4 0 9 8 0 1 junk", 4),
        ("SUBMIT 4 0 9 8 0 1 seed=x", 4),
        ("SUBMIT 4 0 9 8 0 1 seed=1 5", 4),
        ("SUBMIT 4 0 4 8 0 1 5 8", 4),
        ("SUBMIT 4 0 4 8 9 1 5", 4),
    ] {
        let bytes = format!("{header}\nCANCEL 7\n\nSTOP 9\n");
        let read = parse(bytes.as_bytes());
        assert!(
            matches!(read[..], [Incoming::Refused { id: of, .. }, Incoming::Stop(9)] if of == id),
            "{header}: {read:?}"
        );
    }
}

#[test]
fn options_that_were_not_announced_are_refused_with_their_payload() {
    let mut reader = RequestReader::new(&["seed"], 1);
    reader.feed(b"SUBMIT 1 0 1 8 0 1 seed=3\na\nSUBMIT 2 0 1 8 0 1 7\naCANCEL\n\nSTOP 1\n");
    let read = all(&mut reader);
    assert!(matches!(&read[0], Incoming::Submit(s) if s.options.seed == Some(3)));
    assert_eq!(read[1..], [refused(2, "option grammar is not accepted"), Incoming::Stop(1)]);
}

#[test]
fn the_grammar_follows_the_prompt() {
    for field in ["4", "grammar=4"] {
        let bytes = format!("SUBMIT 5 1 5 8 0.7 0.95 {field}\nhello{{\n}}\n\n");
        let mut expected = submit(5, b"hello");
        expected.options.grammar = Some("{\n}\n".to_owned());
        assert_eq!(parse(bytes.as_bytes()), [Incoming::Submit(Box::new(expected))]);
    }
    let read = parse(b"SUBMIT 5 1 1 8 0 1 2\na\xff\xff\n");
    assert_eq!(read, [refused(5, "grammar is no UTF-8")]);
}

#[test]
fn payload_text_is_never_a_command() {
    for payload in [
        &b"CANCEL 7\n"[..],
        b"\x01\x01READY\x01\x01\n",
        b"\r\n\r\n",
        b"\xff\xfe\x80",
        b"\nSUBMIT 1 0 99999 1 1 1\n",
        b"",
    ] {
        let mut bytes = Vec::new();
        write_submit(&mut bytes, &submit(5, payload)).unwrap();
        bytes.extend_from_slice(b"STOP 1\n");
        let expected = [Incoming::Submit(Box::new(submit(5, payload))), Incoming::Stop(1)];
        assert_eq!(parse(&bytes), expected);
    }
}

#[test]
fn nul_in_the_payload_is_refused() {
    let read = parse(b"SUBMIT 5 1 3 8 0.7 0.95\na\0b\nSTOP 1\n");
    assert_eq!(read, [refused(5, "NUL in the payload"), Incoming::Stop(1)]);
}

#[test]
fn lines_that_are_no_command_are_refused() {
    for line in
        ["", " STOP 1", "stop 1", "HELLO", "CANCEL", "CANCEL ", "STOP 0", "STOP 5 x", "STOP -1"]
    {
        let read = parse(format!("{line}\nSTOP 2\n").as_bytes());
        assert!(
            matches!(read[..], [Incoming::Refused { id: 0, .. }, Incoming::Stop(2)]),
            "{line:?}: {read:?}"
        );
    }
}

#[test]
fn an_unknown_frame_end_stops_the_reading() {
    for (bytes, id) in [
        (&b"SUBMIT 5 0 x 8 0 1\nhello\nSTOP 1\n"[..], 5),
        (b"SUBMIT 5 0 -5 8 0 1\nhello\nSTOP 1\n", 5),
        (b"SUBMIT 5 0 1073741825 8 0 1\nhello\nSTOP 1\n", 5),
        (b"SUBMIT 5 0 99999999999999999999 8 0 1\nhello\nSTOP 1\n", 5),
        (b"SUBMIT 5 0\nSTOP 1\n", 5),
        (b"SUBMIT\nSTOP 1\n", 0),
        (b"SUBMIT 5 0 1 8 0 1 grammar=x\na\nSTOP 1\n", 5),
        (b"SUBMIT 5 0 4 8 0 1\nhello\nSTOP 1\n", 5),
        (b"SUBMIT 5 0 5 8 0 1\nhello\r\nSTOP 1\n", 5),
        (b"SUBMIT 5 9 4 8 0 1\nhello\nSTOP 1\n", 5),
        (b"SUBMIT 5 0 5 8 0 1\nhel", 5),
        (b"SUBMIT 5 9 5 8 0 1\nhel", 5),
        (b"SUBMIT 5 0 5 8 0 1\nhello", 5),
        (b"SUBMIT 5 0 5 8 0 1", 5),
    ] {
        let read = parse(bytes);
        assert_eq!(read.len(), 1, "{read:?}");
        assert!(is_lost(&read[0], id), "{read:?}");
    }
}

#[test]
fn headers_end_at_4096_bytes() {
    let mut longest = b"STOP 1".to_vec();
    longest.resize(MAX_HEADER_BYTES, b' ');
    let too_long = [&longest[..], b" \nSTOP 2\n"].concat();
    longest.extend_from_slice(b"\nSTOP 2\n");
    assert_eq!(parse(&longest), [Incoming::Stop(1), Incoming::Stop(2)]);
    let read = parse(&too_long);
    assert!(read.len() == 1 && is_lost(&read[0], 0), "{read:?}");
    // Told without waiting for the newline.
    let mut reader = reader();
    reader.feed(&too_long[..=MAX_HEADER_BYTES]);
    assert!(is_lost(&reader.next().unwrap(), 0));
}

#[test]
fn a_last_command_needs_no_newline() {
    assert_eq!(parse(b"STOP 1\nCANCEL 2"), [Incoming::Stop(1), Incoming::Cancel(2)]);
    assert_eq!(parse(b"CANC"), [refused(0, "unknown verb")]);
    assert_eq!(parse(b""), []);
}

#[test]
fn a_payload_over_the_limit_is_refused_at_once_and_skipped() {
    let mut reader = reader();
    let length = 2 * MAX_PAYLOAD_BYTES;
    reader.feed(format!("SUBMIT 5 0 {length} 8 0 1\n").as_bytes());
    assert_eq!(reader.next(), Some(refused(5, "payload is too long")));
    let chunk = b"STOP 3\n\n".repeat(1 << 17);
    for _ in 0..length / chunk.len() {
        reader.feed(&chunk);
        assert_eq!(reader.next(), None);
        assert!(reader.bytes.capacity() <= 2 * chunk.len());
    }
    reader.feed(b"\nSTOP 4\n");
    assert_eq!(all(&mut reader), [Incoming::Stop(4)]);
}

#[test]
fn a_declared_size_allocates_nothing() {
    let mut reader = reader();
    reader.feed(format!("SUBMIT 5 0 {MAX_PAYLOAD_BYTES} 8 0 1\nx").as_bytes());
    assert_eq!(reader.next(), None);
    assert!(reader.bytes.capacity() < 1024);
}

#[test]
fn refuses_to_write_what_an_engine_would_refuse() {
    let good = submit(1, b"a");
    for bad in [
        Submit { id: 0, ..good.clone() },
        Submit { max_tokens: 0, ..good.clone() },
        Submit { temperature: f64::NAN, ..good.clone() },
        Submit { temperature: -0.0, ..good.clone() },
        Submit { top_p: 0.0, ..good.clone() },
        Submit { payload: b"\0".to_vec(), ..good.clone() },
        Submit { payload: vec![b'a'; MAX_PAYLOAD_BYTES + 1], ..good.clone() },
        Submit {
            options: SubmitOptions { stop_ids: vec![u32::MAX; 500], ..Default::default() },
            ..good.clone()
        },
    ] {
        let mut out = Vec::new();
        assert!(write_submit(&mut out, &bad).is_err());
        assert!(out.is_empty());
    }
}
