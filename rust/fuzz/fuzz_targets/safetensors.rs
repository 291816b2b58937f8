//! Headers of safetensors files and their index: what a model folder says about its tensors.
//!
//! The input is two headers, an index and a configuration, whichever are there. A header that
//! begins as JSON gets its length before it and as much behind it as it speaks of; anything else is
//! a file as it is.
#![no_main]

use std::fs::OpenOptions;
use std::sync::LazyLock;

use colibri::store::{Catalog, FusedRows, MatrixSource, Tensor, VectorSource};
use colibri_fuzz::{Counting, Folder, check_error, files};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[global_allocator]
static MEMORY: Counting = Counting::new();
static FOLDER: LazyLock<Folder> = LazyLock::new(|| Folder::new("safetensors"));

/// Opening may hold this many times what the files say of tensors, ...
const MAX_FACTOR: usize = 64;
/// ... and this many bytes besides.
const MAX_FIXED: usize = 256 << 10;
/// Holes cost no disk, up to what a file system can count.
const MAX_DATA: u64 = 1 << 40;
/// Larger matrices are found but not loaded.
const MAX_LOADED: usize = 64 << 10;

fuzz_target!(|data: &[u8]| {
    let mut files = files(data);
    for name in ["a.safetensors", "b.safetensors"] {
        set_shard(name, files.next());
    }
    FOLDER.set("model.safetensors.index.json", files.next());
    FOLDER.set("config.json", files.next());
    let most = data.len() * MAX_FACTOR + MAX_FIXED;
    match MEMORY.bounded(most, || Catalog::open(FOLDER.path())) {
        Ok(catalog) => catalog.tensors().iter().for_each(|(name, t)| check(&catalog, name, t)),
        Err(error) => check_error(&error),
    }
});

fn set_shard(name: &str, content: Option<&[u8]>) {
    let Some(header) = content.filter(|content| content.starts_with(b"{")) else {
        FOLDER.set(name, content);
        return;
    };
    FOLDER.set(name, Some(&[&(header.len() as u64).to_le_bytes(), header].concat()));
    let tensors = serde_json::from_slice::<Value>(header).unwrap_or_default();
    let ends = tensors.as_object().into_iter().flatten();
    let end = ends.filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64()).max();
    let bytes = 8 + header.len() as u64 + end.unwrap_or(0).min(MAX_DATA);
    let file = OpenOptions::new().write(true).open(FOLDER.path().join(name));
    file.and_then(|file| file.set_len(bytes)).expect("a hole takes no room");
}

/// Whatever matrix the tensor can be is found or refused, and loads if it is small.
fn check(catalog: &Catalog, name: &str, tensor: &Tensor) {
    let (_, bytes, _) = catalog.shards().nth(tensor.shard).expect("its shard is there");
    assert!(tensor.offset.checked_add(tensor.bytes as u64).is_some_and(|end| end <= bytes));
    for part in tensor.record.iter().flat_map(|parts| parts.iter()) {
        let found = MatrixSource::find(catalog, &part.name, part.layout.n_out, part.layout.n_in);
        // With one matrix of a record, all are read.
        if tensor.bytes <= MAX_LOADED || found.is_err() {
            load(catalog, found);
        }
    }
    let find = |end: &str, n_out: usize, n_in: usize| {
        if let Some(name) = name.strip_suffix(end) {
            load(catalog, MatrixSource::find(catalog, name, n_out, n_in));
        }
    };
    match tensor.shape[..] {
        // No configuration has a dimension of none.
        _ if tensor.shape.contains(&0) => {}
        [n_out, n] => {
            find(".weight", n_out, n);
            find(".weight_packed", n_out, n.saturating_mul(4));
            find(".weight_packed", n_out, n.saturating_mul(8));
            find(".weight.qs", n_out, n.saturating_mul(32));
            load_vector(catalog, name, n_out, n);
        }
        [n_experts, rows, blocks, bytes] => {
            let part = FusedRows { n_experts, expert: n_experts - 1, first: rows - 1, step: 1 };
            let n_in = blocks.saturating_mul(bytes).saturating_mul(2);
            if let Some(name) = name.strip_suffix("_blocks") {
                load(catalog, MatrixSource::find_mxfp4(catalog, name, part, 1, n_in));
            }
        }
        _ => {}
    }
}

fn load_vector(catalog: &Catalog, name: &str, n_experts: usize, n: usize) {
    let part = FusedRows { n_experts, expert: 0, first: 0, step: 1 };
    match VectorSource::find(catalog, name, part, n) {
        Ok(source) if source.ram_bytes() <= MAX_LOADED => {
            assert_eq!(source.load(catalog).expect("its bytes are there").len(), n);
        }
        Ok(_) => {}
        Err(error) => check_error(&error),
    }
}

fn load(catalog: &Catalog, found: colibri::error::Result<MatrixSource>) {
    let source = match found {
        Ok(source) => source,
        Err(error) => return check_error(&error),
    };
    if source.disk_bytes().max(source.ram_bytes()) <= MAX_LOADED {
        let loaded = MEMORY.bounded(16 * MAX_LOADED, || source.load(catalog));
        let matrix = loaded.expect("its bytes are there");
        assert_eq!([matrix.n_out, matrix.n_in], source.shape());
    }
}
