//! A configuration of any family, over the weights of a model of that family.
//!
//! The input is config.json and, behind it, generation_config.json.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use colibri::model::{Survey, summary};
use colibri_fuzz::{Counting, Folder, check_error, files, models};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[global_allocator]
static MEMORY: Counting = Counting::new();

/// A summary may hold this many times what the configuration and the headers have, ...
const MAX_FACTOR: usize = 64;
/// ... and a model, as wide and as long as it is, this many times its weights.
const MAX_WEIGHTS: usize = 8;
/// Bounds the tables of rotations.
const CTX: usize = 32;

struct Family {
    folder: Folder,
    weights: usize,
    headers: usize,
}

/// By `model_type`.
static FAMILIES: LazyLock<BTreeMap<String, Family>> = LazyLock::new(|| {
    let mut families = BTreeMap::new();
    for entry in std::fs::read_dir(models()).expect("the models are there") {
        let model = entry.expect("the folder can be read").path();
        let weights = model.join("model.safetensors");
        if weights.is_file() {
            let config = std::fs::read(model.join("config.json")).expect("a model has one");
            families.entry(model_type(&config)).or_insert_with(|| family(&weights));
        }
    }
    families
});

fn family(weights: &Path) -> Family {
    let model = weights.parent().and_then(Path::file_name).expect("a folder").to_string_lossy();
    let folder = Folder::new(&format!("config-{model}"));
    let link = folder.path().join("model.safetensors");
    // A folder of this process's number may be left from another run.
    drop(std::fs::remove_file(&link));
    std::os::unix::fs::symlink(weights.canonicalize().expect("it is there"), link)
        .expect("a link takes no room");
    let bytes = std::fs::read(weights).expect("it is there");
    let (length, _) = bytes.split_first_chunk().expect("a header begins with its length");
    Family { folder, weights: bytes.len(), headers: u64::from_le_bytes(*length) as usize }
}

fn model_type(config: &[u8]) -> String {
    let json = serde_json::from_slice::<Value>(config).unwrap_or_default();
    json["model_type"].as_str().unwrap_or_default().to_owned()
}

fuzz_target!(|data: &[u8]| {
    let mut files = files(data);
    let config = files.next().unwrap_or_default();
    let name = model_type(config);
    let family = FAMILIES.get(&name).or_else(|| FAMILIES.values().next()).expect("there are some");
    family.folder.set("config.json", Some(config));
    family.folder.set("generation_config.json", files.next());
    let dir = family.folder.path();
    let most = MAX_FACTOR * (data.len() + family.headers);
    let told = MEMORY.bounded(most, || summary(dir, &[]));
    let most = most + MAX_WEIGHTS * family.weights;
    let load = || Survey::begin(dir, &[], CTX, false, true)?.whole()?.load(&mut |_, _| {});
    match MEMORY.bounded(most, load) {
        Ok(model) => {
            // What loads is told to be supported.
            assert_eq!(told.expect("it loads")["supported"], true);
            assert_eq!(model.experts.len(), model.sparse_layers.len() * model.n_experts);
            assert!(model.top_k <= model.n_experts);
        }
        Err(error) => check_error(&error),
    }
});
