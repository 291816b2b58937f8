//! What this machine has: instruction sets, cores, memory, and what the process uses of it.
//!
//! Owns: detection. Does not own: the choice of a kernel (`kernels`) or of a budget (`settings`).

pub mod cgroup;

use std::fs;

/// An instruction set level with kernels of its own, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the compiler may assume of every CPU of this architecture.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX2, FMA, F16C and AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The same with AVX-512 VNNI.
    Vnni,
    /// aarch64 with NEON and its dot products of bytes (dotprod).
    Neon,
}

impl Isa {
    /// The best level this CPU runs.
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar)
    }

    /// Every level this CPU runs, weakest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            if avx2 {
                levels.push(Self::Avx2);
                if is_x86_feature_detected!("avxvnni") {
                    levels.push(Self::AvxVnni);
                }
            }
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                levels.push(Self::Avx512);
                if is_x86_feature_detected!("avx512vnni") {
                    levels.push(Self::Vnni);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            levels.push(Self::Neon);
        }
        levels
    }

    /// The level called `name` (`scalar`, `avx2`, `avxvnni`, `avx512`, `vnni`, `neon`).
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "scalar" => Some(Self::Scalar),
            "avx2" => Some(Self::Avx2),
            "avxvnni" => Some(Self::AvxVnni),
            "avx512" => Some(Self::Avx512),
            "vnni" => Some(Self::Vnni),
            "neon" => Some(Self::Neon),
            _ => None,
        }
    }

    /// The level called `name`, if this CPU runs it.
    ///
    /// # Errors
    /// What is wrong with it, in a few words.
    pub fn choose(name: &str) -> Result<Self, String> {
        let isa = Self::parse(name).ok_or_else(|| format!("unknown instruction set {name:?}"))?;
        if Self::available().contains(&isa) {
            Ok(isa)
        } else {
            Err(format!("this CPU lacks {name}"))
        }
    }

    /// The name `parse` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512 => "avx512",
            Self::Vnni => "vnni",
            Self::Neon => "neon",
        }
    }
}

/// Threads worth using: what the scheduler grants this process.
pub fn n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The CPU's marketing name, or the architecture where the system does not tell.
pub fn cpu_name() -> String {
    fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("model name"))
                .and_then(|rest| rest.split_once(':'))
                .map(|(_, name)| name.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Memory of the machine or of the cgroup this process is confined to, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Most this process could ever have.
    pub total_bytes: u64,
    /// What could be allocated now without pushing anything else out.
    pub available_bytes: u64,
}

impl Memory {
    /// Reads `/proc/meminfo` and what control groups limit; zeros where there is neither.
    pub fn read() -> Self {
        let mut memory =
            Self::from_meminfo(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        for group in cgroup::groups() {
            memory.total_bytes = memory.total_bytes.min(group.limit_bytes);
            memory.available_bytes = memory.available_bytes.min(group.room());
        }
        memory
    }

    fn from_meminfo(text: &str) -> Self {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
                .map_or(0, |kib| kib * 1024)
        };
        Self { total_bytes: field("MemTotal:"), available_bytes: field("MemAvailable:") }
    }
}

/// Bytes of this process that are in memory now; 0 where the system does not tell.
pub fn resident_bytes() -> u64 {
    pages_in_memory().map_or(0, |(all, _)| all * page_bytes())
}

/// Bytes of them that are no pages of files: what the system cannot drop to read it again.
pub fn anonymous_bytes() -> u64 {
    pages_in_memory().map_or(0, |(all, of_files)| all.saturating_sub(of_files) * page_bytes())
}

/// Pages of this process that are in memory, and those of files among them.
fn pages_in_memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split(' ').skip(1).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

/// Bytes of a page.
#[allow(unsafe_code, reason = "sysconf has no safe wrapper in std")]
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf only reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_level_is_available_and_its_name_parses() {
        let best = Isa::detect();
        assert!(Isa::available().contains(&best));
        assert_eq!(Isa::parse(best.name()), Some(best));
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        let memory = Memory::from_meminfo("MemTotal:   2048 kB\nMemAvailable:  1024 kB\n");
        assert_eq!(memory, Memory { total_bytes: 2_097_152, available_bytes: 1_048_576 });
    }

    #[test]
    fn a_running_process_is_resident() {
        assert!(resident_bytes() > 100_000);
        let (all, of_files) = pages_in_memory().expect("told");
        assert!(0 < of_files && of_files < all, "the program itself is a file");
        assert!(anonymous_bytes() > 0);
    }
}
