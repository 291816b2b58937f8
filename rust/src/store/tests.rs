//! Folders and files as strangers make them.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::*;
use safetensors::tensor::{TensorView, serialize_to_file};

fn write(path: &Path, tensors: &[(&str, &[f32])]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, v)| v.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, v), b)| {
        (*name, TensorView::new(safetensors::Dtype::F32, vec![v.len()], b).expect("a view"))
    });
    serialize_to_file(views, None, path).expect("a file is written");
}

#[test]
fn shards_without_index_are_all_read() {
    let dir = tempfile::tempdir().expect("a folder");
    write(&dir.path().join("a.safetensors"), &[("x", &[1.0, 2.0])]);
    write(&dir.path().join("b.safetensors"), &[("y", &[3.0])]);
    let catalog = Catalog::open(dir.path()).expect("a catalogue");
    assert_eq!(catalog.read_f32("x", &[2]).expect("x"), [1.0, 2.0]);
    assert_eq!(catalog.read_f32("y", &[1]).expect("y"), [3.0]);
    let error = catalog.read_f32("x", &[3]).expect_err("another shape").to_string();
    assert!(error.contains("[2]") && error.contains("[3]"), "{error}");
}

#[test]
fn a_file_cut_at_any_byte_is_refused_as_truncated() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.safetensors");
    write(&path, &[("x", &[1.0, 2.0, 3.0])]);
    let whole = std::fs::read(&path).expect("bytes");
    for n in 0..whole.len() {
        std::fs::write(&path, &whole[..n]).expect("a shorter file");
        assert!(Catalog::open(dir.path()).is_err(), "{n} of {} bytes", whole.len());
    }
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    write(&dir.path().join("a.safetensors"), &[("x", &[1.0])]);
    write(&dir.path().join("b.safetensors"), &[("x", &[1.0])]);
    let error = Catalog::open(dir.path()).err().expect("refused").to_string();
    assert!(error.contains("b.safetensors: tensor x is in "), "{error}");
    assert!(error.ends_with("a.safetensors too"), "{error}");
}

fn make_pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
}

#[test]
fn pipes_devices_and_folders_are_refused_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let pipe = dir.path().join("pipe");
    make_pipe(&pipe);
    let zero = dir.path().join("zero");
    std::os::unix::fs::symlink("/dev/zero", &zero).expect("a link");
    for path in [&pipe, &zero, dir.path()] {
        let error = read_json(path).expect_err("refused");
        assert!(matches!(error, Error::BadFile { .. }), "{error}");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
    for name in ["model.safetensors.index.json", "model.safetensors"] {
        let dir = tempfile::tempdir().expect("a folder");
        make_pipe(&dir.path().join(name));
        assert!(Catalog::open(dir.path()).is_err(), "{name}");
    }
}

#[test]
fn no_more_than_the_limit_is_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("long");
    std::fs::write(&path, [b' '; 11]).expect("a file");
    assert_eq!(read_capped(&path, 11).expect("all of it").len(), 11);
    assert!(matches!(read_capped(&path, 10), Err(Error::BadFile { .. })));
    assert!(matches!(read_capped(&path.join("x"), 10), Err(Error::Io { .. })));
    assert!(matches!(read_capped(&dir.path().join("none"), 1), Err(Error::FileMissing { .. })));
}

/// A safetensors file of `header` with `padding` bytes after it.
fn raw(path: &Path, header: &[u8], padding: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.resize(bytes.len() + padding, 0);
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn a_length_of_a_header_is_not_believed() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.safetensors");
    raw(&path, b"{}", 0);
    assert!(Catalog::open(dir.path()).expect("no tensor").tensors().is_empty());
    for length in [0u64, 1, 3, 100_000_000, 100_000_001, 1 << 40, 1 << 63, u64::MAX - 7, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        std::fs::write(&path, bytes).expect("a file");
        let error = Catalog::open(dir.path()).err().expect("refused");
        assert!(matches!(error, Error::BadFile { .. }), "{length}: {error}");
    }
    // A header of spaces is as long as it says, and says nothing.
    raw(&path, &vec![b' '; 1 << 20], 0);
    assert!(Catalog::open(dir.path()).is_err());
    // More than the limit is not even read: this file has no blocks.
    std::fs::File::create(&path).and_then(|file| file.set_len(200 << 20)).expect("a sparse file");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.write_all_at(&(199u64 << 20).to_le_bytes(), 0))
        .expect("a header length");
    let started = std::time::Instant::now();
    let error = Catalog::open(dir.path()).err().expect("refused").to_string();
    assert!(error.contains("the header claims"), "{error}");
    assert!(started.elapsed().as_millis() < 100, "{:?}", started.elapsed());
}

#[test]
fn tensors_must_fill_the_file_exactly() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.safetensors");
    let header = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    for (padding, what) in [(0, "truncated"), (7, "truncated"), (9, "longer"), (4096, "longer")] {
        raw(&path, header, padding);
        let error = Catalog::open(dir.path()).err().expect("refused").to_string();
        assert!(error.contains(what), "{padding}: {error}");
    }
    raw(&path, header, 8);
    assert!(Catalog::open(dir.path()).is_ok());
}

#[test]
fn a_file_cut_after_it_was_opened_gives_no_stale_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("model.safetensors");
    write(&path, &[("x", &[1.0; 64])]);
    let catalog = Catalog::open(dir.path()).expect("a catalogue");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(std::fs::metadata(&path).expect("its length").len() - 1).expect("it is cut");
    let error = catalog.read_f32("x", &[64]).expect_err("refused");
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("shorter than when it was opened"), "{error}");
    let mut taken = 0;
    let tensor = catalog.get("x").expect("the tensor");
    let pieces = catalog.read_pieces(tensor, 100, &mut |piece| {
        taken += piece.len();
        Ok(())
    });
    assert!(pieces.is_err() && taken == 0, "{taken}");
}

#[test]
fn all_that_is_wrong_with_a_folder_is_told_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    write(&at("m-1-of-4.safetensors"), &[("x", &[1.0]), ("y", &[1.0])]);
    write(&at("m-2-of-4.safetensors"), &[("x", &[1.0]), ("y", &[1.0]), ("z", &[1.0])]);
    std::fs::write(at("m-4-of-4.safetensors"), b"PK").expect("a file");
    let (catalog, faults) = Catalog::examine(dir.path(), &[]).expect("a folder");
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    for part in [
        "1 of 4 shards not found: m-3-of-4.safetensors",
        "m-2-of-4.safetensors: tensor x and 1 others are in ",
        "m-4-of-4.safetensors: shorter than a safetensors header",
    ] {
        assert!(told.iter().any(|fault| fault.contains(part)), "{part}: {told:?}");
    }
    assert_eq!(told.len(), 3);
    assert!(catalog.may_be_unread("anything"));
    let all = Catalog::open(dir.path()).err().expect("refused").to_string();
    assert!(told.iter().all(|fault| all.contains(fault.as_str())), "{all}");
}

#[test]
fn an_index_tells_what_is_in_a_shard_that_is_not_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    write(&at("a.safetensors"), &[("x.weight", &[1.0])]);
    let map = serde_json::json!({"weight_map": {
        "x.weight": "a.safetensors", "y.weight": "a.safetensors", "z.weight": "b.safetensors",
    }});
    std::fs::write(at("model.safetensors.index.json"), map.to_string()).expect("an index");
    let (catalog, faults) = Catalog::examine(dir.path(), &[]).expect("a folder");
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("1 of 2 shards not found: b.safetensors"), "{told:?}");
    assert!(told[1].contains("a.safetensors: lacks tensor y.weight, which"), "{told:?}");
    assert!(catalog.may_be_unread("z") && catalog.may_be_unread("z.weight"));
    for certain in ["x", "y", "y.weight", "z.w", "zz"] {
        assert!(!catalog.may_be_unread(certain), "{certain}");
    }
}

#[test]
fn a_model_may_be_spread_over_folders() {
    let [a, b] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    write(&a.path().join("m-1-of-2.safetensors"), &[("x", &[1.0, 2.0])]);
    write(&b.path().join("m-2-of-2.safetensors"), &[("y", &[3.0])]);
    let more: Vec<PathBuf> = vec![b.path().to_owned()];
    let (catalog, faults) = Catalog::examine(a.path(), &more).expect("folders");
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(catalog.read_f32("x", &[2]).expect("x"), [1.0, 2.0]);
    assert_eq!(catalog.read_f32("y", &[1]).expect("y"), [3.0]);
    assert!(catalog.path_of(catalog.get("y").expect("y")).starts_with(b.path()));
    // Another file with one of the tensors.
    write(&b.path().join("extra.safetensors"), &[("x", &[1.0, 2.0])]);
    let (_, faults) = Catalog::examine(a.path(), &more).expect("folders");
    let [fault] = &faults[..] else { panic!("one fault: {faults:?}") };
    assert!(fault.to_string().contains("tensor x is in "), "{fault}");
}

#[test]
fn bytes_that_are_read_are_counted() {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors: [(&str, &[f32]); 2] = [("a", &[1.0; 10]), ("m.experts.0.up.weight", &[1.0; 3])];
    write(&dir.path().join("model.safetensors"), &tensors);
    let catalog = Catalog::open(dir.path()).expect("a catalogue");
    assert_eq!(catalog.bytes_read(), BytesRead::default());
    catalog.read(catalog.get("a").expect("a")).expect("read");
    assert_eq!(catalog.bytes_read(), BytesRead { dense: 40, experts: 0 });
    let expert = catalog.get("m.experts.0.up.weight").expect("an expert");
    catalog.read_at(expert, 4, &mut [0; 8]).expect("read");
    assert_eq!(catalog.bytes_read(), BytesRead { dense: 40, experts: 8 });
}

#[test]
fn bytes_are_the_same_through_the_page_cache_and_past_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let content: Vec<f32> = (0..(3 << 18) + 77).map(|i| i as f32).collect();
    let names = ["a", "m.experts.0.up.weight"];
    write(&dir.path().join("model.safetensors"), &names.map(|name| (name, &content[..])));
    let bytes = bytemuck::cast_slice::<f32, u8>(&content);
    for is_past_cache in [false, true] {
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        for part in [ModelPart::Dense, ModelPart::Experts] {
            catalog.read_past_cache(part, is_past_cache);
        }
        for tensor in names.map(|name| catalog.get(name).expect("a tensor")) {
            // What was just written is in the page cache until it is on the disk and forgotten.
            let file = std::fs::File::open(catalog.path_of(tensor)).expect("a file");
            file.sync_all().expect("a disk");
            catalog.forget(tensor, 0, tensor.bytes);
            assert_eq!(catalog.read(tensor).expect("read"), bytes);
            for size in [4096, 1 << 20, bytes.len()] {
                catalog.forget(tensor, 0, tensor.bytes);
                let mut joined = Vec::new();
                let mut take = |piece: &[u8]| {
                    joined.extend_from_slice(piece);
                    Ok(())
                };
                catalog.read_pieces(tensor, size, &mut take).expect("read");
                assert!(joined == bytes, "{size}");
            }
        }
        let once = bytes.len() as u64;
        let read = BytesRead { dense: 4 * once, experts: 4 * once };
        assert_eq!(catalog.bytes_read(), read);
    }
}

#[test]
fn a_file_changed_after_it_was_opened_is_not_computed_with() {
    use std::os::unix::fs::FileExt as _;

    type Change = fn(&std::fs::File, u64);

    let content = vec![1.0; 1 << 18];
    let changes: [Change; 2] = [
        |file, bytes| file.write_all_at(&[7], bytes - 1).expect("it is written to"),
        |file, bytes| file.set_len(bytes + 1).expect("it is lengthened"),
    ];
    for (is_past_cache, change) in [(false, changes[0]), (true, changes[0]), (true, changes[1])] {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("model.safetensors");
        write(&path, &[("x", &content)]);
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        // So that its time tells, whatever steps the system's clock takes.
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        file.set_modified(long_ago).expect("a time");
        let catalog = Catalog::open(dir.path()).expect("a catalogue");
        catalog.read_past_cache(ModelPart::Dense, is_past_cache);
        let tensor = catalog.get("x").expect("the tensor");
        assert!(catalog.read(tensor).is_ok());
        change(&file, std::fs::metadata(&path).expect("its length").len());
        file.sync_all().expect("a disk");
        catalog.forget(tensor, 0, tensor.bytes);
        let pieces = catalog.read_pieces(tensor, 1 << 19, &mut |_| panic!("nothing is handed on"));
        for error in [catalog.read(tensor).map(drop), pieces].map(|read| read.expect_err("refused"))
        {
            let told = "model.safetensors: the file was changed since it was opened";
            assert!(error.to_string().ends_with(told), "{error}");
        }
    }
}
