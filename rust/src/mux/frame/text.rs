//! Text within a line: percent-encoding, hex, and names that cannot break a record.

/// Percent-encodes everything but visible ASCII, so that the result is one word of a line.
pub fn percent_encode(text: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text {
        if byte.is_ascii_graphic() && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            push_hex_digits(&mut encoded, byte);
        }
    }
    encoded
}

/// Undoes [`percent_encode`]; a sign that starts no escape stays, bytes that are no UTF-8 become
/// replacement characters.
pub fn percent_decode(word: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        if let (b'%', [high, low, after @ ..]) = (first, tail)
            && let (Some(high), Some(low)) = (hex_value(*high), hex_value(*low))
        {
            bytes.push(high << 4 | low);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Appends `bytes` as lower-case hex, high nibble first.
pub fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 * bytes.len());
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Reads hex digits of either case; `None` for odd lengths and other characters.
pub fn parse_hex(word: &[u8]) -> Option<Vec<u8>> {
    if !word.len().is_multiple_of(2) {
        return None;
    }
    word.chunks_exact(2).map(|pair| Some(hex_value(pair[0])? << 4 | hex_value(pair[1])?)).collect()
}

/// A device name without the characters that separate fields and lines, and without outer spaces,
/// which would not be told from separators.
pub fn clean_name(name: &str) -> String {
    let kept: String = name.chars().filter(|c| !c.is_control() && *c != '|').collect();
    kept.trim_matches(' ').to_owned()
}

fn push_hex_digits(text: &mut String, byte: u8) {
    for nibble in [byte >> 4, byte & 15] {
        text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0').to_ascii_uppercase());
    }
}

fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoded_text_is_one_visible_word() {
        assert_eq!(percent_encode("a b%\n\u{e9}".as_bytes()), "a%20b%25%0A%C3%A9");
        assert_eq!(percent_decode(b"a%20b%25%0A%C3%A9"), "a b%\n\u{e9}");
    }

    #[test]
    fn stray_percent_signs_stay() {
        assert_eq!(percent_decode(b"100%"), "100%");
        assert_eq!(percent_decode(b"%zz%4"), "%zz%4");
    }

    #[test]
    fn names_lose_separators() {
        assert_eq!(clean_name("A|B\n\x01C D"), "ABC D");
        assert_eq!(clean_name("\x01 A B  \r|"), "A B");
    }

    proptest! {
        #[test]
        fn percent_codec_round_trips(text in ".*") {
            let word = percent_encode(text.as_bytes());
            prop_assert!(word.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(percent_decode(word.as_bytes()), text);
        }

        #[test]
        fn hex_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut word = Vec::new();
            push_hex(&mut word, &bytes);
            prop_assert_eq!(parse_hex(&word), Some(bytes));
        }

        #[test]
        fn decoding_is_total(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = percent_decode(&bytes);
            let _ = parse_hex(&bytes);
        }
    }
}
