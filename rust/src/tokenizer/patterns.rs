//! Where the regular expressions of a file mean something else here than where they were written.

use serde_json::Value;

/// Longest run of whitespace. Patterns of real models look behind such a run for what is no
/// whitespace; the library takes up to a million steps back, and then cuts no more, silently.
const MAX_RUN: usize = 400_000;

/// Makes `^` and `$` match at every line: they always do in Oniguruma, with which the Python package
/// `tokenizers` searches.
pub fn anchor_at_lines(stage: &mut Value) {
    match stage {
        Value::Object(fields) => {
            if let Some(Value::String(regex)) = fields.get_mut("Regex") {
                regex.insert_str(0, "(?m)");
            }
            fields.values_mut().for_each(anchor_at_lines);
        }
        Value::Array(stages) => stages.iter_mut().for_each(anchor_at_lines),
        _ => {}
    }
}

/// Refuses a text that patterns would cut wrongly.
pub fn check_runs(text: &str) -> Result<(), String> {
    // Bytes are quickly counted, and most texts are shorter.
    if text.len() <= MAX_RUN {
        return Ok(());
    }
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        if run > MAX_RUN {
            return Err(format!("the text has a run of more than {MAX_RUN} blank characters"));
        }
    }
    Ok(())
}
