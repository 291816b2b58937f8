use super::*;
use proptest::prelude::*;

const SLOTS: usize = 3;

/// What `pieces` parse to, the end of the input included.
fn parse(pieces: &[&[u8]]) -> Vec<Incoming> {
    let mut reader = LineReader::new(SLOTS);
    let mut found = Vec::new();
    for piece in pieces {
        reader.feed(piece);
        while let Some(incoming) = reader.next() {
            found.push(incoming);
        }
    }
    reader.finish();
    while let Some(incoming) = reader.next() {
        found.push(incoming);
    }
    found
}

fn text(line: &str) -> Incoming {
    Incoming::Text(line.as_bytes().to_vec())
}

fn prompt(payload: &[u8]) -> Prompt {
    Prompt { slot: 0, max_tokens: 9, temperature: 0.5, top_p: 1.0, payload: payload.to_vec() }
}

fn refused_turn(detail: &str) -> Incoming {
    Incoming::RefusedTurn(detail.to_owned())
}

#[test]
fn lines_are_messages_or_commands() {
    let input = b"hello\r\n\n\r\n\x02RESET\n\x02MORE\r\n  two words \nlast";
    let expected = [
        text("hello"),
        Incoming::Nothing,
        Incoming::Nothing,
        Incoming::Reset,
        Incoming::More,
        text("  two words "),
        text("last"),
    ];
    assert_eq!(parse(&[input]), expected);
}

#[test]
fn only_one_carriage_return_is_taken_off() {
    assert_eq!(parse(&[b"a\rb\r\r\n"]), [text("a\rb\r")]);
}

#[test]
fn what_is_not_quite_a_command_is_refused() {
    for line in ["\x02", "\x02FOO", "\x02RESET ", "\x02reset", "\x02MORE 1", "\x02PROMPTS 3 9 0 1"]
    {
        let found = parse(&[line.as_bytes(), b"\nnext\n"]);
        assert_eq!(
            found,
            [Incoming::RefusedCommand("unknown command".to_owned()), text("next")],
            "{line:?}"
        );
    }
    assert_eq!(parse(&[b" \x02RESET\n"]), [text(" \x02RESET")]);
}

#[test]
fn bytes_that_are_no_text_pass_but_for_nul() {
    assert_eq!(parse(&[b"a\xff\n"]), [Incoming::Text(b"a\xff".to_vec())]);
    assert_eq!(parse(&[b"a\0b\nnext"]), [refused_turn("NUL in the line"), text("next")]);
    let found = parse(&[b"\x02PROMPT 3 9 0.5 1\na\0b\nnext"]);
    assert_eq!(found, [refused_turn("NUL in the prompt"), text("next")]);
}

#[test]
fn a_prompt_is_its_bytes_whatever_they_are() {
    let payload = b"\x02RESET\n\x02PROMPT 1 1 0 1\n\n\xff\r\n";
    let mut input = format!("\x02PROMPT  {} 9 5e-1 1  2 and more\r\n", payload.len()).into_bytes();
    input.extend(payload);
    input.extend(b"\nnext\n");
    let expected = Prompt { slot: 2, ..prompt(payload) };
    assert_eq!(parse(&[&input]), [Incoming::Prompt(expected), text("next")]);
}

#[test]
fn a_refused_prompt_is_consumed() {
    let cases = [
        ("4", "max_tokens is out of range"),
        ("4 0 0 1", "max_tokens is out of range"),
        ("4 2147483648 0 1", "max_tokens is out of range"),
        ("4 9", "temperature is out of range"),
        ("4 9 2.1 1", "temperature is out of range"),
        ("4 9 nan 1", "temperature is out of range"),
        ("4 9 0", "top_p is out of range"),
        ("4 9 0 0", "top_p is out of range"),
        ("4 9 0 1 3", "slot is out of range"),
        ("4 9 0 1 -1", "slot is out of range"),
    ];
    for (fields, detail) in cases {
        let found = parse(&[format!("\x02PROMPT {fields}\n\x02FO\n\nnext").as_bytes()]);
        assert_eq!(found, [refused_turn(detail), text("next")], "{fields}");
    }
    let length = MAX_PAYLOAD_BYTES + 1;
    let header = format!("\x02PROMPT {length} 9 0 1\n");
    let found = parse(&[header.as_bytes(), &vec![b'\n'; length], b"\nnext"]);
    assert_eq!(found, [refused_turn("the prompt is too long"), text("next")]);
}

#[test]
fn a_prompt_without_end_is_the_end() {
    for (input, detail) in [
        ("\x02PROMPT\n\x02RESET\n", "the length of a prompt is unreadable"),
        ("\x02PROMPT x 9 0 1\n", "the length of a prompt is unreadable"),
        ("\x02PROMPT -1 9 0 1\n", "the length of a prompt is unreadable"),
        ("\x02PROMPT 1073741825 9 0 1\n", "the length of a prompt is unreadable"),
        ("\x02PROMPT 3 9 0 1\nabcd\n\x02RESET\n", "no newline after a prompt"),
        ("\x02PROMPT 3 9 0 9\nabcd\n\x02RESET\n", "no newline after a prompt"),
        ("\x02PROMPT 3 9 0 1\nab", "the input ended within a prompt"),
        ("\x02PROMPT 3 9 0 9\nab", "the input ended within a prompt"),
    ] {
        assert_eq!(parse(&[input.as_bytes()]), [Incoming::Lost(detail.to_owned())], "{input:?}");
    }
}

#[test]
fn the_newline_of_a_last_prompt_may_be_missing() {
    assert_eq!(parse(&[b"\x02PROMPT 3 9 0.5 1\nabc"]), [Incoming::Prompt(prompt(b"abc"))]);
    assert_eq!(parse(&[b"\x02PROMPT 0 9 0.5 1"]), [Incoming::Prompt(prompt(b""))]);
}

#[test]
fn a_prompt_waits_for_its_newline() {
    let mut reader = LineReader::new(SLOTS);
    reader.feed(b"\x02PROMPT 3 9 0.5 1\nabc");
    assert_eq!(reader.next(), None);
    reader.feed(b"\n");
    assert_eq!(reader.next(), Some(Incoming::Prompt(prompt(b"abc"))));
}

#[test]
fn lines_beyond_the_limit_are_refused_and_not_kept() {
    let chunk = vec![b'x'; 1 << 20];
    let mut reader = LineReader::new(SLOTS);
    for _ in 0..40 {
        reader.feed(&chunk);
        assert_eq!(reader.next(), None);
        assert!(reader.bytes.len() - reader.start <= MAX_PAYLOAD_BYTES);
    }
    reader.feed(b"\nnext\n");
    assert_eq!(reader.next(), Some(refused_turn("the line is too long")));
    assert_eq!(reader.next(), Some(text("next")));

    let most = vec![b'x'; MAX_PAYLOAD_BYTES];
    assert_eq!(parse(&[&most, b"\n"]), [Incoming::Text(most.clone())]);

    let long = "0".repeat(MAX_HEADER_BYTES);
    let found = parse(&[format!("\x02FOO{long}\nnext").as_bytes()]);
    let refusal = Incoming::RefusedCommand("the command is too long".to_owned());
    assert_eq!(found, [refusal, text("next")]);
    // Where the count is not read, what follows may be anything.
    let found = parse(&[format!("\x02PROMPT {long}\nnext").as_bytes()]);
    assert_eq!(found, [Incoming::Lost("header is too long".to_owned())]);
}

/// Pieces of sessions, good and bad, in any order.
fn session() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\x02RESET\n".to_vec()),
        Just(b"\x02MORE\r\n".to_vec()),
        Just(b"\x02FOO\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\x02PROMPT ".to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
        ("[a-z ]{0,8}", prop::bool::ANY).prop_map(|(line, cr)| {
            format!("{line}{}\n", if cr { "\r" } else { "" }).into_bytes()
        }),
        (prop::collection::vec(any::<u8>(), 0..20), 0_usize..5, 0_u32..3).prop_map(
            |(payload, slot, max_tokens)| {
                let length = payload.len();
                let header = format!("\x02PROMPT {length} {max_tokens} 0 1 {slot}\n");
                [header.as_bytes(), &payload[..], b"\n"].concat()
            }
        ),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_split_parses_the_same(input in session(), size in 1_usize..7) {
        let pieces: Vec<&[u8]> = input.chunks(size).collect();
        prop_assert_eq!(parse(&pieces), parse(&[&input]));
    }

    #[test]
    fn no_payload_is_ever_a_line(payload in session(), slot in 0_usize..6) {
        let length = payload.len();
        let header = format!("\x02PROMPT {length} 9 0 1 {slot}\n");
        let found = parse(&[header.as_bytes(), &payload, b"\nnext"]);
        prop_assert_eq!(found.len(), 2);
        prop_assert_eq!(&found[1], &text("next"));
    }
}
