use super::*;
use crate::matrix::{Elements, Matrix};
use crate::store::MatrixSource;
use crate::store::record::{Part, parse_records};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name)
}

fn conversion(name: &str) -> Conversion {
    let options = Options::parse("int4", 64, "int8", "int8", "int8").expect("options");
    Conversion::new(&fixture(name), &[], &options).expect("a plan")
}

fn convert(name: &str, dst: &Path, threads: usize) {
    conversion(name).run(dst, Some(threads), &mut |_, _, _| true).expect("converted");
}

/// Names and bytes of a folder's files.
fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.map(|path| (file_name(&path), fs::read(&path).expect("bytes"))).collect()
}

fn lines(matrix: &Matrix) -> &[crate::matrix::Line] {
    let Elements::Int(tiles) = &matrix.elements else { panic!("integers") };
    &tiles.lines
}

#[test]
fn a_file_is_no_place_for_a_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, []).expect("a file");
    let run = conversion("glm4_moe_lite").run(&file, Some(1), &mut |_, _, _| true);
    let error = run.expect_err("refused").to_string();
    assert!(error.ends_with("file: is no folder"), "{error}");
}

#[test]
fn records_load_as_the_integers_they_were_made_of() {
    let dir = tempfile::tempdir().expect("a folder");
    convert("glm4_moe_lite", dir.path(), 2);
    let source = Catalog::open(&fixture("glm4_moe_lite")).expect("the source");
    let catalog = Catalog::open(dir.path()).expect("the container");
    let mut seen = 0;
    for tensor in catalog.tensors().values() {
        for Part { name, layout } in tensor.record.iter().flat_map(|parts| &parts[..]) {
            let find = |catalog| MatrixSource::find(catalog, name, layout.n_out, layout.n_in);
            let loaded = find(&catalog).expect("found").load(&catalog).expect("loaded");
            let original = find(&source).expect("found").load(&source).expect("loaded");
            let made = quantize::quantize(&original, layout.bits, layout.group).expect("finite");
            assert_eq!(lines(&loaded), lines(&made), "{name}");
            // Also by the other way to lay out integers.
            let groups = layout.n_in / layout.group;
            let scales: Vec<u8> = (0..layout.n_out * groups)
                .map(|i| made.quantized(i / groups, i % groups * layout.group).1)
                .flat_map(|scale| half::f16::from_f32(scale).to_le_bytes())
                .collect();
            let (bits, n_out, n_in) = (layout.bits, layout.n_out, layout.n_in);
            let laid = Matrix::from_int(bits, n_out, n_in, layout.group, layout.scales, &scales, {
                |row, k| made.quantized(row, k).0 as i8
            });
            assert_eq!(lines(&loaded), lines(&laid), "{name}");
            for i in 0..n_out * n_in {
                let (row, k) = (i / n_in, i % n_in);
                assert_eq!(loaded.get(row, k).to_bits(), laid.get(row, k).to_bits(), "{name}");
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} matrices");
}

#[test]
fn other_readers_open_every_file_and_records_are_aligned() {
    let dir = tempfile::tempdir().expect("a folder");
    convert("glm4_moe", dir.path(), 1);
    let mut records = 0;
    for (name, bytes) in content(dir.path()) {
        if !name.ends_with(".safetensors") {
            continue;
        }
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("a valid file");
        for (tensor, view) in file.tensors() {
            if tensor.strip_suffix(".tiles").is_some() {
                let offset = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
                assert!(offset.is_multiple_of(4096) && view.data().len().is_multiple_of(4096));
                records += 1;
            }
        }
    }
    assert!(records > 50, "{records} records");
}

#[test]
fn bytes_depend_on_neither_threads_nor_interruptions() {
    let folder = || tempfile::tempdir().expect("a folder");
    let expected = folder();
    convert("glm4_moe", expected.path(), 1);
    let expected = content(expected.path());
    let threads = folder();
    convert("glm4_moe", threads.path(), 3);
    assert_eq!(content(threads.path()), expected);
    let conversion = conversion("glm4_moe");
    let resumed = folder();
    let mut allowed = 0;
    // Each run gets a little further than the one before it.
    loop {
        let mut steps = 0;
        let result = conversion.run(resumed.path(), Some(2), &mut |_, _, _| {
            steps += 1;
            steps <= allowed
        });
        match result {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, Error::Interrupted), "{error}"),
        }
        assert!(Catalog::open(resumed.path()).is_err(), "half a model is refused");
        // As if the power had failed: a file that is not whole, half a line of the journal.
        fs::write(resumed.path().join("model-experts-00004.safetensors.partial"), b"x")
            .expect("written");
        let journal = resumed.path().join("convert.journal");
        let mut torn = fs::read(&journal).expect("a journal");
        torn.extend_from_slice(b"{\"file\": \"model");
        fs::write(journal, torn).expect("written");
        allowed += 29;
    }
    assert!(allowed > 100, "{allowed} steps");
    assert_eq!(content(resumed.path()), expected);
    let again = conversion.run(resumed.path(), None, &mut |_, _, _| true).expect("nothing to do");
    assert_eq!(again.0, 0);
    assert_eq!(content(resumed.path()), expected);
}

#[test]
fn a_finished_file_that_was_damaged_since_is_made_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let conversion = conversion("glm4_moe_lite");
    let mut steps = 0;
    let late = conversion.run(dir.path(), Some(1), &mut |stage, done, total| {
        steps += 1;
        stage != "converting" || done < total
    });
    assert!(matches!(late, Err(Error::Interrupted)));
    let path = dir.path().join("model-dense-00001.safetensors");
    let mut bytes = fs::read(&path).expect("it was finished");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).expect("written");
    let (made, there) = conversion.run(dir.path(), None, &mut |_, _, _| true).expect("resumed");
    assert_eq!((made, there), (2, 3));
    assert_eq!(verify(dir.path(), &mut |_, _, _| true).expect("verified"), [""; 0]);
}

#[test]
fn only_one_conversion_writes_to_a_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let conversion = conversion("glm4_moe");
    let mut refused = None;
    conversion
        .run(dir.path(), Some(1), &mut |_, _, _| {
            refused.get_or_insert_with(|| {
                conversion.run(dir.path(), Some(1), &mut |_, _, _| true).map(|_| ())
            });
            true
        })
        .expect("converted");
    let error = refused.expect("called").expect_err("refused").to_string();
    assert!(error.contains("another conversion"), "{error}");
}

/// A folder with one layer of experts that share the tensors `gate_up` and `down`.
fn sharing(model_type: &str, tensors: &[(&str, &[usize])]) -> tempfile::TempDir {
    use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
    let dir = tempfile::tempdir().expect("a folder");
    let config = json!({
        "model_type": model_type,
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_local_experts": 65536,
    });
    fs::write(dir.path().join("config.json"), config.to_string()).expect("a file");
    let bytes = vec![0; 4096];
    let views = tensors.iter().map(|(name, shape)| {
        let n: usize = shape.iter().product();
        let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes[..4 * n]);
        (format!("model.layers.0.mlp.experts.{name}"), view.expect("a tensor"))
    });
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).expect("a file");
    dir
}

#[test]
fn experts_that_share_tensors_are_as_many_as_the_files_hold() {
    let options = Options::parse("int4", 64, "int8", "int8", "int8").expect("options");
    let plan = |dir: &tempfile::TempDir| Conversion::new(dir.path(), &[], &options);
    let (gate_up, down): (&[usize], &[usize]) = (&[2, 16, 16], &[2, 16, 8]);
    let good = sharing("qwen3_5_moe", &[("gate_up_proj", gate_up), ("down_proj", down)]);
    let kinds = plan(&good).expect("a plan").summary()["kinds"].take();
    assert_eq!(kinds[0]["weights"], 2 * (16 + 8) * 16);
    // Any number of nothing fits into a file.
    let (gate_up, down): (&[usize], &[usize]) = (&[1 << 40, 0, 0], &[1 << 40, 0, 0]);
    let empty = sharing("qwen3_5_moe", &[("gate_up_proj", gate_up), ("down_proj", down)]);
    // The configuration claims 65,536 of them.
    let few = sharing("gpt_oss", &[("gate_up_proj", &[2, 16, 16]), ("down_proj", &[2, 8, 16])]);
    // One expert by two names.
    let twice = [("gate_up_proj", gate_up), ("down_proj", down), ("0.gate_proj.weight", &[8, 16])];
    for dir in [empty, few, sharing("gpt_oss", &twice)] {
        let error = plan(&dir).err().expect("refused").to_string();
        assert!(error.contains("expert"), "{error}");
    }
}

#[test]
fn descriptions_of_impossible_records_are_refused() {
    let good = r#"{"name":"m","shape":[16,64],"format":"int4-g64","scales":"f16"}"#;
    assert!(parse_records(&format!(r#"{{"t": [{good}]}}"#)).is_ok());
    for (from, to) in [
        ("[16,64]", "[0,64]"),
        ("[16,64]", "[16,0]"),
        ("[16,64]", "[16]"),
        ("[16,64]", "[-16,64]"),
        ("[16,64]", "[4294967296,4294967296]"),
        ("[16,64]", "[18446744073709551615,64]"),
        ("int4-g64", "int4-g0"),
        ("int4-g64", "int4-g48"),
        ("int4-g64", "int4-g-64"),
        ("int4-g64", "int4-g064"),
        ("int4-g64", "int3-g64"),
        ("int4-g64", "int4"),
        ("f16", "f8"),
        ("\"name\":\"m\",", ""),
        ("\"name\"", "\"zero_point\":1,\"name\""),
    ] {
        let text = format!(r#"{{"t": [{}]}}"#, good.replace(from, to));
        assert!(parse_records(&text).is_err(), "{text}");
    }
    for text in ["", "[]", "1", r#"{"t": []}"#, r#"{"t": 1}"#, r#"{"t": [1]}"#] {
        assert!(parse_records(text).is_err(), "{text}");
    }
}
