//! The command line of `colibri-engine`, shared by the native binary and the Python package.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::cpu::Isa;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::mux::{self, SessionOptions, Wire};
use crate::runner::RunnerOptions;

/// Exit code for a command line that cannot be used.
const EXIT_USAGE: i32 = 2;
/// Exit code where loading or serving failed.
const EXIT_FAILURE: i32 = 1;
/// Exit code of a bug; the message names the broken invariant.
const EXIT_PANIC: i32 = 101;

/// Least time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a Mixture-of-Experts model and serves it over stdin and stdout.
///
/// Each setting is taken from its flag, else from its environment variable, else its default.
#[derive(Parser, Debug)]
#[command(name = "colibri-engine", version)]
struct Args {
    /// Model folder
    #[arg(long, env = "COLI_MODEL", value_name = "DIR")]
    model: PathBuf,
    /// Speak the multiplexed protocol (the default where stdin is no terminal)
    #[arg(long)]
    mux: bool,
    /// Most tokens of a conversation [default: 4096, or less where the model was made for less]
    #[arg(long, env = "CTX", value_parser = clap::value_parser!(u32).range(2..))]
    ctx: Option<u32>,
    /// Conversations kept at the same time
    #[arg(long, env = "KV_SLOTS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    slots: u32,
    /// Memory budget in GB (10^9 bytes) for weights, experts and conversations
    #[arg(long, env = "RAM_GB", value_name = "GB", value_parser = positive)]
    ram: Option<f64>,
    /// Worker threads
    #[arg(long, env = "COLIBRI_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Instruction set: scalar, avx2, avx512
    #[arg(long, env = "COLIBRI_ISA", value_parser = isa)]
    isa: Option<Isa>,
    /// 1 reports the five most likely tokens with each token
    #[arg(long, env = "SERVE_TOPK", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    serve_topk: u8,
    /// Records that are sent: all, those of the protocol's first version, or those that the
    /// gateway of the C engine understands
    #[arg(long, env = "COLIBRI_WIRE", value_enum, default_value_t)]
    wire: Wire,
    /// Write `progress <stage> <done> <total>` lines to stderr while loading
    #[arg(long)]
    progress: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err("must be above 0".into()) }
}

fn isa(text: &str) -> Result<Isa, String> {
    let isa = Isa::parse(text).ok_or_else(|| format!("unknown instruction set {text:?}"))?;
    if Isa::available().contains(&isa) { Ok(isa) } else { Err(format!("this CPU lacks {text}")) }
}

/// Runs `colibri-engine` with `args`, the program's name first; returns the exit code.
pub fn run(args: &[String]) -> i32 {
    match std::panic::catch_unwind(|| main(args)) {
        Ok(code) => code,
        // The panic hook has printed the message.
        Err(_) => EXIT_PANIC,
    }
}

fn main(args: &[String]) -> i32 {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            // A wrong value is one line; clap adds usage and hints to it.
            let text = error.to_string();
            eprint!("{text}");
            return EXIT_USAGE;
        }
        // --help and --version; nothing is served, so stdout is free.
        Err(error) => return error.print().map_or(EXIT_FAILURE, |()| 0),
    };
    if !args.mux && std::io::stdin().is_terminal() {
        eprintln!("error: colibri-engine speaks a protocol for programs on stdin and stdout");
        eprintln!("hint: `colibri chat` talks to people; --mux starts the protocol anyway");
        return EXIT_USAGE;
    }
    match serve(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
            EXIT_FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<i32> {
    let options = RunnerOptions {
        ctx: args.ctx.map(|n| n as usize),
        slots: args.slots as usize,
        ram_bytes: args.ram.map(|gb| (gb * 1e9) as u64),
        threads: args.threads.map(|n| n as usize),
        isa: args.isa,
    };
    let mut reported = None;
    let mut engine = Engine::load(&args.model, &options, &mut |done, total| {
        let due = reported.is_none_or(|at: Instant| at.elapsed() >= PROGRESS_INTERVAL);
        if args.progress && (due || done == total) {
            reported = Some(Instant::now());
            eprintln!("progress load {done} {total}");
        }
    })?;
    for notice in &engine.runner.notices {
        eprintln!("notice: {notice}");
    }
    let model_name = std::path::absolute(&args.model)
        .map_err(|e| Error::io(&args.model, e))?
        .file_name()
        .map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    if args.serve_topk == 1 && !args.wire.has_details() {
        eprintln!("notice: this wire has no TOPK records; --serve-topk is ignored");
    }
    let default_topk = if args.serve_topk == 1 && args.wire.has_details() { 5 } else { 0 };
    let options = SessionOptions { model_name, default_topk, wire: args.wire };
    mux::serve(&mut engine, &options)
}
