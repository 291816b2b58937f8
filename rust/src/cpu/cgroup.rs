//! Memory limits of the control groups that this process is in: its own and those around it.
//!
//! Owns: the files of both versions, which are text that may say anything. Does not own: what is
//! made of a limit.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// Most bytes of a file that are looked at.
const MAX_BYTES: u64 = 64 << 10;
/// Limits from here on are none: version 1 writes the largest number of whole pages for it.
const NO_LIMIT: u64 = 1 << 62;

/// A group whose memory is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Most bytes its processes may have together.
    pub limit_bytes: u64,
    /// What they have that the system cannot take back: anonymous and shared memory.
    pub used_bytes: u64,
}

impl Group {
    /// What is left.
    pub fn room(self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// Every limited group this process is in.
pub fn groups() -> Vec<Group> {
    let own = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    groups_below(&own, Path::new(MOUNT))
}

/// Every limited group of a process whose `/proc/self/cgroup` is `own`, where groups are mounted at
/// `mount`.
fn groups_below(own: &str, mount: &Path) -> Vec<Group> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if controllers.is_empty() {
            // Beside groups of version 1, those of version 2 are mounted in a folder of their own.
            for mount in [mount.to_owned(), mount.join("unified")] {
                found.extend(with_outer(&mount, path).iter().filter_map(|dir| second(dir)));
            }
        } else if controllers.split(',').any(|name| name == "memory") {
            let dirs = with_outer(&mount.join("memory"), path);
            let binds = |(i, dir): &(usize, &PathBuf)| *i == 0 || is_hierarchical(dir);
            let binding = dirs.iter().enumerate().filter(binds);
            found.extend(binding.filter_map(|(_, dir)| first(dir)));
        }
    }
    found
}

/// The group at `path` below `mount` and those around it, from the innermost on. In a container the
/// path may be one of the host; what is mounted is the container's own group then.
fn with_outer(mount: &Path, path: &str) -> Vec<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    let own = mount.join(path);
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below || !own.is_dir() {
        return vec![mount.to_owned()];
    }
    own.ancestors().take_while(|dir| dir.starts_with(mount)).map(Path::to_owned).collect()
}

/// Whether a group of version 1 counts what those in it use. Newer systems have no others.
fn is_hierarchical(dir: &Path) -> bool {
    number(dir, "memory.use_hierarchy") != Some(0)
}

/// A group of version 1.
fn first(dir: &Path) -> Option<Group> {
    let limit_bytes = number(dir, "memory.limit_in_bytes").filter(|&limit| limit < NO_LIMIT)?;
    let stat = text(&dir.join("memory.stat")).unwrap_or_default();
    // Of the groups in it too, where that is told.
    let used = |name| {
        let all = field(&stat, &format!("total_{name} "));
        all.or_else(|| field(&stat, &format!("{name} "))).unwrap_or(0)
    };
    Some(Group { limit_bytes, used_bytes: used("rss").saturating_add(used("shmem")) })
}

/// A group of version 2; "max" is no limit.
fn second(dir: &Path) -> Option<Group> {
    let limit_bytes = number(dir, "memory.max").filter(|&limit| limit < NO_LIMIT)?;
    let stat = text(&dir.join("memory.stat")).unwrap_or_default();
    let used = |name| field(&stat, name).unwrap_or(0);
    Some(Group { limit_bytes, used_bytes: used("anon ").saturating_add(used("shmem ")) })
}

fn number(dir: &Path, name: &str) -> Option<u64> {
    text(&dir.join(name))?.trim().parse().ok()
}

/// The number behind `name` in the text of a `memory.stat`.
fn field(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        dir
    }

    fn found(own: &str, files: &[(&str, &str)]) -> Vec<(u64, u64)> {
        let dir = tree(files);
        groups_below(own, dir.path()).iter().map(|g| (g.limit_bytes, g.used_bytes)).collect()
    }

    #[test]
    fn all_groups_around_a_process_limit_it() {
        let files = [
            ("memory.stat", "anon 999\n"),
            ("a/memory.max", "5000\n"),
            ("a/memory.stat", "anon 700\nfile 4000\nanon_thp 1\nshmem 50\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.stat", "anon 300\n"),
            ("a/b/c/memory.max", "8000\n"),
            ("a/b/c/memory.stat", "anon 200\n"),
            ("other/memory.max", "1\n"),
        ];
        assert_eq!(found("0::/a/b/c\n", &files), [(8000, 200), (5000, 750)]);
        assert_eq!(found("0::/a\n", &files), [(5000, 750)]);
        assert!(found("0::/\n", &files).is_empty());
        let group = Group { limit_bytes: 5000, used_bytes: 750 };
        assert_eq!((group.room(), Group { used_bytes: 6000, ..group }.room()), (4250, 0));
    }

    #[test]
    fn version_1_has_a_mount_of_its_own_and_counts_by_group() {
        let own = "12:cpu,cpuacct:/x\n4:hugetlb,memory:/a/b\n0::/\n";
        let mut files = vec![
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.limit_in_bytes", "6000\n"),
            ("memory/a/memory.use_hierarchy", "1\n"),
            ("memory/a/memory.stat", "cache 5\nrss 1\ntotal_cache 9\ntotal_rss 900\n"),
            ("memory/a/b/memory.limit_in_bytes", "7000\n"),
            ("memory/a/b/memory.use_hierarchy", "0\n"),
            ("memory/a/b/memory.stat", "rss 100\ntotal_rss 250\ntotal_shmem 30\n"),
            ("memory/x/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(found(own, &files), [(7000, 280), (6000, 900)]);
        files[2].1 = "0\n";
        assert_eq!(found(own, &files), [(7000, 280)], "the outer one does not count the inner");
        let hybrid = [("unified/a/memory.max", "40"), ("memory/memory.limit_in_bytes", "50")];
        assert_eq!(found("1:memory:/\n0::/a\n", &hybrid), [(50, 0), (40, 0)]);
    }

    #[test]
    fn in_a_container_the_mount_is_the_group() {
        let files = [("memory.max", "3000"), ("memory.stat", "anon 30\n"), ("x", "")];
        for path in ["/docker/0123", "/../..", "/a/../../b", "/x", "//"] {
            assert_eq!(found(&format!("0::{path}\n"), &files), [(3000, 30)], "{path}");
        }
        let files = [("memory/memory.limit_in_bytes", "3000"), ("memory/memory.stat", "rss 7\n")];
        assert_eq!(found("9:memory:/docker/0123\n", &files), [(3000, 7)]);
    }

    #[test]
    fn what_cannot_be_read_is_no_limit() {
        for limit in ["", "max", "-1", "1e9", "99999999999999999999", "9223372036854775807", "\0"] {
            assert!(found("0::/\n", &[("memory.max", limit)]).is_empty(), "{limit:?}");
        }
        let long = format!("anon {}\n", "1".repeat(1 << 17));
        for stat in ["", "anon\n", "anon x\n", "anonymous 5\n", &long] {
            let files = [("memory.max", "10"), ("memory.stat", stat)];
            assert_eq!(found("0::/\n", &files), [(10, 0)]);
        }
        for own in ["", "0", "0:", "::::", "x:memory", "0:memory:/\n", "\n\n"] {
            assert!(found(own, &[("memory.stat", "anon 1\n")]).is_empty(), "{own:?}");
        }
    }
}
