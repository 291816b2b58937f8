//! Whole characters from tokens that end anywhere.

/// Joins the bytes of tokens into text that never ends within a character.
///
/// At most three bytes are held back, and only while they can still become a character; bytes
/// that cannot pass through as they are.
#[derive(Debug, Default, Clone)]
pub struct Utf8Stream {
    held: Vec<u8>,
}

impl Utf8Stream {
    /// A stream that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of a token and returns what is complete with it, possibly nothing.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(bytes);
        let keep = unfinished(&text);
        self.held = text.split_off(text.len() - keep);
        text
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns what is held back as it is; the stream may go on afterwards.
    pub fn flush(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// Number of bytes at the end of `text` that begin a character and lack the rest of it.
fn unfinished(text: &[u8]) -> usize {
    (1..=text.len().min(3))
        .find(|length| {
            let tail = &text[text.len() - length..];
            std::str::from_utf8(tail)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut stream = Utf8Stream::new();
        let mut out: Vec<Vec<u8>> = pieces.iter().map(|piece| stream.push(piece)).collect();
        out.push(stream.flush());
        out
    }

    #[test]
    fn a_character_goes_out_with_the_token_that_completes_it() {
        let bird = "\u{1f426}".as_bytes();
        let out = run(&[&bird[..1], &bird[1..3], &[bird[3], b'a']]);
        assert_eq!(out, [b"".to_vec(), b"".to_vec(), [bird, b"a"].concat(), b"".to_vec()]);
    }

    #[test]
    fn invalid_bytes_pass_through_at_once() {
        assert_eq!(
            run(&[b"\xff", b"\x80\xc0", b"\xed\xa0"])[..3],
            [b"\xff".to_vec(), b"\x80\xc0".to_vec(), b"\xed\xa0".to_vec()]
        );
        assert_eq!(run(&[b"a\xe2\x82"]), [b"a".to_vec(), b"\xe2\x82".to_vec()]);
        assert_eq!(run(&[b"\xe2\x82", b"a"])[1], b"\xe2\x82a");
    }

    proptest! {
        #[test]
        fn valid_text_comes_out_in_whole_characters(text in "\\PC{0,20}", size in 1_usize..5) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let out = run(&pieces);
            prop_assert!(out.iter().all(|piece| std::str::from_utf8(piece).is_ok()));
            prop_assert!(out[out.len() - 1].is_empty());
            prop_assert_eq!(out.concat(), text.as_bytes());
        }

        #[test]
        fn no_byte_is_lost(bytes in prop::collection::vec(any::<u8>(), 0..64), size in 1_usize..5) {
            let mut stream = Utf8Stream::new();
            let mut out = Vec::new();
            for piece in bytes.chunks(size) {
                out.extend(stream.push(piece));
                prop_assert!(stream.held.len() <= 3);
            }
            out.extend(stream.flush());
            prop_assert_eq!(out, bytes);
        }
    }
}
