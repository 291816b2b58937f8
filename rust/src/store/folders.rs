//! Which files hold a model's weights, over all the folders that it is spread over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::files::read_json;
use crate::error::{Error, Result};

/// What separates folders in a list. Semicolons and commas are the C engine's.
const SEPARATORS: [char; 3] = [':', ';', ','];
/// Most shards that the name of one may tell of.
const MAX_SHARDS: usize = 100_000;
const INDEX: &str = "model.safetensors.index.json";
const SUFFIX: &str = ".safetensors";

/// The folders that a list like that of `COLI_MODEL_DIRS` names.
pub fn split_dirs(list: &str) -> Vec<PathBuf> {
    list.split(SEPARATORS).map(str::trim).filter(|dir| !dir.is_empty()).map(PathBuf::from).collect()
}

/// The shards of a model and what is wrong with their being there.
#[derive(Default)]
pub struct Shards {
    /// Name -> path of each that was found once.
    pub found: BTreeMap<String, PathBuf>,
    /// Tensor -> shard, if an index says so.
    pub index: Option<BTreeMap<String, String>>,
    /// Shards that are missing or in several folders.
    pub faults: Vec<Error>,
    /// Names of the ones that are not in `found`.
    pub absent: BTreeSet<String>,
}

impl Shards {
    /// Looks for the shards that the index in `dir` names, else for every `*.safetensors`, in `dir`
    /// and the folders `more`.
    ///
    /// # Errors
    /// [`Error::FileMissing`] for a folder that there is not, [`Error::BadFile`] for an index that
    /// cannot be used.
    pub fn find(dir: &Path, more: &[PathBuf]) -> Result<Self> {
        let dirs = distinct(dir, more)?;
        let index_path = dir.join(INDEX);
        let index = if is_there(&index_path) { Some(read_index(&index_path)?) } else { None };
        let names: BTreeSet<String> = if let Some(index) = &index {
            index.values().cloned().collect()
        } else {
            let listed = dirs.iter().map(|dir| list(dir)).collect::<Result<Vec<_>>>()?;
            listed.into_iter().flatten().collect()
        };
        let mut shards = Self { index, ..Self::default() };
        if names.is_empty() {
            shards.faults.push(Error::FileMissing {
                path: dir.join("model.safetensors"),
                hint: "a model folder holds config.json, tokenizer.json and *.safetensors files"
                    .into(),
            });
        }
        // An index names them all. Without, the shards that are there tell how many there are.
        let expected = if shards.index.is_some() { names } else { told_by_names(names) };
        let mut missing = Vec::new();
        for name in &expected {
            let paths: Vec<PathBuf> =
                dirs.iter().map(|dir| dir.join(name)).filter(|path| path.exists()).collect();
            match &paths[..] {
                [] => missing.push(name.clone()),
                [path] => {
                    shards.found.insert(name.clone(), path.clone());
                    continue;
                }
                [first, second, ..] => shards.faults.push(Error::bad_file(
                    second,
                    format!("is in {} too; remove one of them", folder(first)),
                )),
            }
            shards.absent.insert(name.clone());
        }
        if !missing.is_empty() {
            shards.faults.push(Error::ShardsMissing {
                dir: dir.to_owned(),
                names: missing,
                total: expected.len(),
                hint: "download them again, or name the folders that hold them in COLI_MODEL_DIRS"
                    .into(),
            });
        }
        Ok(shards)
    }
}

/// Whether a folder has something of this name, be it a link to nothing: that is damage, and not the
/// same as a file that was never there. Opening it says what is wrong.
pub fn is_there(path: &Path) -> bool {
    path.symlink_metadata().map_or_else(|e| e.kind() != std::io::ErrorKind::NotFound, |_| true)
}

fn folder(file: &Path) -> std::path::Display<'_> {
    file.parent().unwrap_or(file).display()
}

/// `dir` and `more`, each folder once.
fn distinct(dir: &Path, more: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut seen = BTreeSet::new();
    let mut dirs = Vec::new();
    for (i, dir) in std::iter::once(dir).chain(more.iter().map(PathBuf::as_path)).enumerate() {
        let real = dir.canonicalize().ok().filter(|real| real.is_dir());
        let Some(real) = real else {
            return Err(Error::FileMissing {
                path: dir.to_owned(),
                hint: if i == 0 {
                    "name an existing model folder".into()
                } else {
                    "COLI_MODEL_DIRS (--model-dirs) must name existing folders".into()
                },
            });
        };
        if seen.insert(real) {
            dirs.push(dir.to_owned());
        }
    }
    Ok(dirs)
}

/// `tensor name -> file name` of an index, file names checked to be plain names.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let json = read_json(path)?;
    let map = json
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::bad_file(path, "has no weight_map"))?;
    map.iter()
        .map(|(name, file)| match file.as_str() {
            Some(file) if is_plain_name(file) => Ok((name.clone(), file.to_owned())),
            _ => Err(Error::bad_file(
                path,
                format!("tensor {name} is placed in {file}, which is not a plain file name"),
            )),
        })
        .collect()
}

/// Whether `name` names a file in the folder it is used in.
pub(super) fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

fn list(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let name = entry.map_err(|e| Error::io(dir, e))?.file_name();
        // A drive that was in a Mac has `._NAME` beside every NAME.
        let shown = name.to_str().filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.'));
        if let Some(name) = shown {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// `names` and those they tell of: `a-00002-of-00003.safetensors` has two siblings.
fn told_by_names(names: BTreeSet<String>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for name in &names {
        let Some((before, total)) =
            name.strip_suffix(SUFFIX).and_then(|stem| stem.rsplit_once("-of-"))
        else {
            continue;
        };
        let Some((prefix, number)) = before.rsplit_once('-') else { continue };
        let count = |digits: &str| digits.parse().ok().filter(|n| (1..=MAX_SHARDS).contains(n));
        let (Some(n), Some(of)) = (count(number), count(total)) else { continue };
        let sibling =
            |i: usize| format!("{prefix}-{i:0width$}-of-{total}{SUFFIX}", width = number.len());
        // The first of them found stands for all, so that each group is counted out once.
        if n <= of && !all.contains(name) {
            all.extend((1..=of).map(sibling));
        }
    }
    all.extend(names);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(dir: &Path, name: &str) {
        std::fs::write(dir.join(name), []).expect("a file");
    }

    fn faults(dir: &Path, more: &[&Path]) -> Vec<String> {
        let more: Vec<PathBuf> = more.iter().map(|dir| dir.to_path_buf()).collect();
        let shards = Shards::find(dir, &more).expect("folders");
        shards.faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_of_folders_have_any_of_three_separators() {
        assert_eq!(split_dirs("/a:/b;/c, /d ,"), ["/a", "/b", "/c", "/d"].map(PathBuf::from));
        assert!(split_dirs(" ").is_empty());
    }

    #[test]
    fn an_index_cannot_point_outside_the_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        for file in ["../x.safetensors", "/etc/passwd", "a\\b", "", ".hidden"] {
            let json = serde_json::json!({"weight_map": {"x": file}});
            std::fs::write(dir.path().join(INDEX), json.to_string()).expect("an index");
            let error = Shards::find(dir.path(), &[]).err().expect("refused").to_string();
            assert!(error.contains("not a plain file name"), "{file}: {error}");
        }
    }

    #[test]
    fn missing_shards_are_named_with_and_without_an_index() {
        let dir = tempfile::tempdir().expect("a folder");
        let names: Vec<String> =
            (1..=4).map(|i| format!("m-{i:05}-of-00004.safetensors")).collect();
        for gone in [[1, 3], [1, 2], [2, 4]] {
            let dir = tempfile::tempdir_in(dir.path()).expect("a folder");
            for i in (1..=4).filter(|i| !gone.contains(i)) {
                touch(dir.path(), &names[i - 1]);
            }
            let [told] = &faults(dir.path(), &[])[..] else { panic!("one fault") };
            let expected = gone.map(|i| format!("m-{i:05}-of-00004.safetensors")).join(", ");
            assert!(told.ends_with(&format!("2 of 4 shards not found: {expected}")), "{told}");
            let map: BTreeMap<&String, &String> = names.iter().map(|n| (n, n)).collect();
            let json = serde_json::json!({ "weight_map": map });
            std::fs::write(dir.path().join(INDEX), json.to_string()).expect("an index");
            assert_eq!(&faults(dir.path(), &[]), std::slice::from_ref(told));
        }
    }

    #[test]
    fn names_that_tell_of_no_siblings_are_taken_as_they_are() {
        let names = ["a.safetensors", "b-of-3.safetensors", "c-00009-of-00003.safetensors"];
        let names = names.iter().map(ToString::to_string);
        let huge = "d-1-of-99999999999.safetensors".to_owned();
        let names: BTreeSet<String> = names.chain([huge]).collect();
        assert_eq!(told_by_names(names.clone()), names);
    }

    #[test]
    fn a_link_to_nothing_is_no_absent_index() {
        let dir = tempfile::tempdir().expect("a folder");
        touch(dir.path(), "model.safetensors");
        assert!(Shards::find(dir.path(), &[]).is_ok());
        for target in ["nothing", INDEX] {
            let index = dir.path().join(INDEX);
            std::os::unix::fs::symlink(target, &index).expect("a link");
            let error = Shards::find(dir.path(), &[]).err().expect("refused").to_string();
            assert!(error.contains(INDEX), "{error}");
            std::fs::remove_file(&index).expect("removed");
        }
    }

    #[test]
    fn hidden_files_are_no_shards() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["model.safetensors", "._model.safetensors", ".safetensors"] {
            touch(dir.path(), name);
        }
        let shards = Shards::find(dir.path(), &[]).expect("a folder");
        assert_eq!(shards.found.keys().collect::<Vec<_>>(), ["model.safetensors"]);
    }

    #[test]
    fn shards_may_lie_in_several_folders_but_only_once() {
        let [a, b] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        touch(a.path(), "x-1-of-2.safetensors");
        touch(b.path(), "x-2-of-2.safetensors");
        assert_eq!(faults(a.path(), &[]).len(), 1);
        assert!(faults(a.path(), &[b.path()]).is_empty());
        // A folder that is named twice is one folder.
        assert!(faults(a.path(), &[b.path(), a.path(), b.path()]).is_empty());
        touch(b.path(), "x-1-of-2.safetensors");
        let [told] = &faults(a.path(), &[b.path()])[..] else { panic!("one fault") };
        let expected = format!("x-1-of-2.safetensors: is in {} too", a.path().display());
        assert!(told.contains(&expected), "{told}");
    }

    #[test]
    fn folders_must_exist() {
        let dir = tempfile::tempdir().expect("a folder");
        let none = dir.path().join("none");
        let error = Shards::find(dir.path(), std::slice::from_ref(&none)).err().expect("refused");
        assert!(error.hint().is_some_and(|hint| hint.contains("COLI_MODEL_DIRS")), "{error:?}");
        assert!(Shards::find(&none, &[]).is_err());
    }
}
