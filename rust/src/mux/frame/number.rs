//! Numbers as the wire spells them; stricter than `str::parse` where a request is concerned.

/// Reads a decimal number without sign; `None` for anything else or beyond `u64`.
pub fn integer(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads a finite number in decimal or exponent notation; a minus sign only where `negative`.
pub fn decimal(word: &[u8], negative: bool) -> Option<f64> {
    let unsigned = match word {
        [b'-', rest @ ..] if negative => rest,
        _ => word,
    };
    if !is_decimal(unsigned) {
        return None;
    }
    let value: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Reads a number that an engine printed: any sign and decimals; not-a-number and infinities,
/// which C prints as words, become `otherwise`.
pub fn lenient(word: &[u8], otherwise: f64) -> Option<f64> {
    let value: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    Some(if value.is_finite() { value } else { otherwise })
}

/// Whether `word` is digits with at most one point, then an optional exponent.
fn is_decimal(word: &[u8]) -> bool {
    let (mantissa, exponent) = match word.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    };
    let digits = mantissa.iter().filter(|byte| byte.is_ascii_digit()).count();
    let has_point = mantissa.contains(&b'.');
    if digits == 0 || digits + usize::from(has_point) != mantissa.len() {
        return false;
    }
    exponent.is_none_or(|exponent| {
        let digits = match exponent {
            [b'+' | b'-', rest @ ..] => rest,
            _ => exponent,
        };
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_digits_that_fit() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"007"), Some(7));
        assert_eq!(integer(b"18446744073709551615"), Some(u64::MAX));
        for word in ["", "-1", "+1", " 1", "1 ", "0x1", "1.0", "1e3", "18446744073709551616"] {
            assert_eq!(integer(word.as_bytes()), None, "{word:?}");
        }
    }

    #[test]
    fn decimals_have_no_hex_no_words_and_no_stray_signs() {
        for (word, value) in
            [("0", 0.0), ("0.7", 0.7), (".5", 0.5), ("5.", 5.0), ("1e-1", 0.1), ("2E+0", 2.0)]
        {
            assert_eq!(decimal(word.as_bytes(), false), Some(value), "{word:?}");
        }
        for word in
            ["", ".", "e1", "1e", "1e+", "1.2.3", "+1", "-1", "--1", "0x1p3", "nan", "inf", "1e999"]
        {
            assert_eq!(decimal(word.as_bytes(), false), None, "{word:?}");
        }
        assert_eq!(decimal(b"-1.5", true), Some(-1.5));
        assert_eq!(decimal(b"--1.5", true), None);
        assert_eq!(decimal(b"-", true), None);
    }

    #[test]
    fn printed_numbers_are_read_leniently() {
        assert_eq!(lenient(b"-0.000", 9.0), Some(0.0));
        assert_eq!(lenient(b"1.23456789", 9.0), Some(1.234_567_89));
        assert_eq!(lenient(b"-nan", 9.0), Some(9.0));
        assert_eq!(lenient(b"inf", 9.0), Some(9.0));
        assert_eq!(lenient(b"x", 9.0), None);
    }
}
