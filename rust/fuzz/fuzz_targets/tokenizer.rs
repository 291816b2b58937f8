//! What a model folder says about text: tokenizer, template, and what is encoded with them.
//!
//! The input is tokenizer.json, tokenizer_config.json, chat_template.jinja and a text, whichever
//! are there. Templates are compiled, not rendered: that is done where it may fail.
#![no_main]

use std::sync::LazyLock;

use colibri::legacy::Chat;
use colibri::tokenizer::{Tokenizer, Utf8Stream};
use colibri_fuzz::{Counting, Folder, check_error, files};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static MEMORY: Counting = Counting::new();
static FOLDER: LazyLock<Folder> = LazyLock::new(|| Folder::new("tokenizer"));

/// Loading may hold this many times what the files have, ...
const MAX_FACTOR: usize = 256;
/// ... and this many bytes besides: patterns become automata of a bounded size.
const MAX_FIXED: usize = 64 << 20;
const TEXT: &str = "It's 1234 words,  caf\u{e9} \u{6771}\u{4eac}\n\n\u{1f426}<s><|user|>\t x";

fuzz_target!(|data: &[u8]| {
    let mut files = files(data);
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        FOLDER.set(name, files.next());
    }
    let text = String::from_utf8_lossy(files.next().unwrap_or_default());
    let most = data.len() * MAX_FACTOR + MAX_FIXED;
    match MEMORY.bounded(most, || Tokenizer::load(FOLDER.path().join("tokenizer.json"))) {
        Ok(tokenizer) => {
            for text in [TEXT, &text] {
                check(&tokenizer, text);
            }
        }
        Err(error) => check_error(&error),
    }
    match MEMORY.bounded(most, || Chat::load(FOLDER.path())) {
        Ok(chat) => assert!(!chat.fault().unwrap_or_default().contains(char::is_control)),
        Err(error) => check_error(&error),
    }
});

fn check(tokenizer: &Tokenizer, text: &str) {
    for special in [true, false] {
        let ids = match tokenizer.encode(text, special) {
            Ok(ids) => ids,
            Err(error) => return check_error(&error),
        };
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        assert!(tokenizer.least_tokens(text.len()) <= ids.len());
        let mut stream = Utf8Stream::new();
        let mut streamed = Vec::new();
        for id in &ids {
            streamed.extend(stream.push(tokenizer.token_bytes(*id)));
        }
        streamed.extend(stream.flush());
        let streamed = String::from_utf8_lossy(&streamed);
        let decoded = tokenizer.decode(&ids);
        assert!(streamed == decoded || streamed.strip_prefix(' ') == Some(&decoded));
    }
}
