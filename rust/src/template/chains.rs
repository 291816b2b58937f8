//! Bounds on how deep a template's syntax can nest, found before the engine parses it.
//!
//! The engine limits brackets and blocks, but parses, compiles and releases operators, filters
//! and `elif` by recursion without a limit. Depth within a tag is at most its number of tokens.

/// Most tokens within one tag; the templates of real models stay far below a thousand.
const MAX_TAG_TOKENS: usize = 8192;
/// Most `elif` tags in a template: each is nested in the one before.
const MAX_ELIFS: usize = 4096;

/// Refuses a source that could nest too deeply.
///
/// Reads tags as the engine's lexer does: where it would see more tokens in a tag than this, the
/// limit would be void. Where it would stop with an error, reading on does no harm.
pub fn check(source: &str) -> Result<(), String> {
    let bytes = source.as_bytes();
    let mut lexer = Lexer { bytes, at: 0, open_brackets: 0, elifs: 0 };
    while let Some(start) = find(bytes, lexer.at, b"{") {
        lexer.at = start + 2;
        match bytes.get(start + 1) {
            Some(b'{') => lexer.tag(b"}}")?,
            Some(b'%') => match basic_tag(bytes, lexer.after_sign(), b"raw") {
                Some(inside) => lexer.at = end_of_raw(bytes, inside),
                None => lexer.tag(b"%}")?,
            },
            Some(b'#') => {
                lexer.at =
                    find(bytes, lexer.after_sign(), b"#}").map_or(bytes.len(), |end| end + 2);
            }
            _ => lexer.at = start + 1,
        }
    }
    Ok(())
}

struct Lexer<'s> {
    bytes: &'s [u8],
    at: usize,
    /// May be negative, and goes on over tags, as in the engine.
    open_brackets: isize,
    elifs: usize,
}

impl Lexer<'_> {
    /// Where a tag goes on after the sign of whitespace control, if it has one.
    fn after_sign(&self) -> usize {
        self.at + usize::from(matches!(self.bytes.get(self.at), Some(b'-' | b'+')))
    }

    /// Reads to the end of a tag whose opening has been read.
    fn tag(&mut self, end: &[u8]) -> Result<(), String> {
        self.at = self.after_sign();
        let mut tokens = 0;
        while let Some(&byte) = self.bytes.get(self.at) {
            if byte.is_ascii_whitespace() {
                self.at += 1;
                continue;
            }
            if self.open_brackets == 0 {
                let signed = self.after_sign();
                if self.bytes[signed..].starts_with(end) {
                    self.at = signed + end.len();
                    return Ok(());
                }
            }
            tokens += 1;
            if tokens > MAX_TAG_TOKENS {
                return Err(format!("a tag has more than {MAX_TAG_TOKENS} tokens"));
            }
            self.token(byte)?;
        }
        Ok(())
    }

    fn token(&mut self, byte: u8) -> Result<(), String> {
        let start = self.at;
        self.at += 1;
        match byte {
            b'(' | b'[' | b'{' => self.open_brackets += 1,
            b')' | b']' | b'}' => self.open_brackets -= 1,
            b'\'' | b'"' => {
                while let Some(&next) = self.bytes.get(self.at) {
                    self.at += if next == b'\\' { 2 } else { 1 };
                    if next == byte {
                        break;
                    }
                }
            }
            _ if is_word(byte) => {
                while self.bytes.get(self.at).copied().is_some_and(is_word) {
                    self.at += 1;
                }
                self.elifs += usize::from(&self.bytes[start..self.at] == b"elif");
                if self.elifs > MAX_ELIFS {
                    return Err(format!("there are more than {MAX_ELIFS} elif tags"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

/// The first place of `needle` at or after `from`.
fn find(bytes: &[u8], from: usize, needle: &[u8]) -> Option<usize> {
    let at = bytes.get(from..)?.windows(needle.len()).position(|window| window == needle)?;
    Some(from + at)
}

/// Where the text goes on if `name` and the end of a block tag follow at `at`.
fn basic_tag(bytes: &[u8], at: usize, name: &[u8]) -> Option<usize> {
    let rest = bytes.get(at..)?.trim_ascii_start().strip_prefix(name)?.trim_ascii_start();
    let rest = rest.strip_prefix(b"-").or_else(|| rest.strip_prefix(b"+")).unwrap_or(rest);
    Some(bytes.len() - rest.strip_prefix(b"%}")?.len())
}

/// Where the text goes on after a raw block that began at `from`.
fn end_of_raw(bytes: &[u8], mut from: usize) -> usize {
    while let Some(open) = find(bytes, from, b"{%") {
        from = open + 2;
        let signed = from + usize::from(matches!(bytes.get(from), Some(b'-' | b'+')));
        if let Some(end) = basic_tag(bytes, signed, b"endraw") {
            return end;
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = MAX_TAG_TOKENS + 1;

    #[test]
    fn ordinary_text_and_tags_pass() {
        for source in [
            "",
            "{",
            "{{",
            "{%",
            "{#",
            "{% raw %}",
            "{{ 'open",
            "{{ ) }}",
            "{{ {'a': {}} }} {%- if x -%} { {% endif %}",
            &"{{ a.b }}".repeat(LONG),
            &format!("{{# {} #}}", "-".repeat(LONG)),
            &format!("{{% raw -%}} {{{{ {} }}}} {{%- endraw %}}", "-".repeat(LONG)),
            &format!("{{{{ '{}' }}}}", "-".repeat(LONG)),
            &"-".repeat(LONG),
        ] {
            assert_eq!(check(source), Ok(()), "{source:.40}");
        }
    }

    #[test]
    fn long_chains_are_found_wherever_they_hide() {
        for source in [
            format!("{{{{ {}1 }}}}", "-".repeat(LONG)),
            format!("{{%- set x = {}1 %}}", "not ".repeat(LONG)),
            format!("{{{{ a{} }}}}", ".b".repeat(LONG)),
            format!("{{{{ a{} }}}}", "|string".repeat(LONG)),
            // Ends of tags that are none.
            format!("{{{{ a{} }}}}", "~'}}'".repeat(LONG)),
            format!("{{{{ a{} }}}}", "~'\\'}}'".repeat(LONG)),
            format!("{{{{ ( {} ) }}}}", "a}}".repeat(LONG)),
            format!("{{% if a{} %}}", "~b}}".repeat(LONG)),
            // Beginnings of comments and raw blocks that are none, or that have ended.
            format!("{{#-#}}{{{{ {}1 }}}}", "-".repeat(LONG)),
            format!("{{% raw x %}}{{{{ {}1 }}}}", "-".repeat(LONG)),
            format!("{{%raw%}}{{{{{{%+endraw-%}}{{{{ {}1 }}}}", "-".repeat(LONG)),
            format!("{{{{{{ {}1 }}}}", "-".repeat(LONG)),
            // Brackets left open reach into the text after the tag.
            format!("{{{{ ( }}}} {}", "-".repeat(LONG)),
            format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(MAX_ELIFS + 1)),
        ] {
            assert!(check(&source).is_err(), "{source:.40}");
        }
    }
}
