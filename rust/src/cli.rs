//! The command line of `colibri-engine`, shared by the native binary and the Python package.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::cpu::Isa;
use crate::engine::{DEFAULT_STALL_MS, Engine, MAX_PREFILL_CHUNK};
use crate::error::{Error, Result, one_line};
use crate::experts::history::{self, SAVE_LIMIT};
use crate::gpu::DeviceKind;
use crate::kv::Precision;
use crate::legacy::{self, Chat, LegacyOptions};
use crate::log::say;
use crate::mux::{self, SessionOptions, Wire};
use crate::runner::RunnerOptions;
use crate::store::{Reads, split_dirs};

/// Exit code for a command line that cannot be used.
const EXIT_USAGE: i32 = 2;
/// Exit code where loading or serving failed.
const EXIT_FAILURE: i32 = 1;
/// Exit code of a bug; the message names the broken invariant.
const EXIT_PANIC: i32 = 101;

/// How long conversations are read before there is a word of it.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);
/// Least time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a Mixture-of-Experts model and serves it over stdin and stdout.
///
/// Each setting is taken from its flag, else from its environment variable, else its default.
#[derive(Parser, Debug)]
#[command(name = "colibri-engine", version)]
struct Args {
    /// Model folder
    #[arg(value_name = "MODEL")]
    folder: Option<PathBuf>,
    /// Model folder, where none is given by position
    #[arg(long, env = "COLI_MODEL", value_name = "DIR")]
    model: Option<OsString>,
    /// Further folders that hold shards of the model, separated by colons
    #[arg(long, env = "COLI_MODEL_DIRS", value_name = "DIRS")]
    model_dirs: Option<String>,
    /// Folders with copies of files of the model on other drives, separated by colons; experts are
    /// read from whichever drive has them first
    #[arg(long, env = "COLI_MODEL_MIRROR", value_name = "DIRS")]
    model_mirror: Option<String>,
    /// Speak the multiplexed protocol, as with `SERVE_BATCH=1` (the default where stdin is no
    /// terminal)
    #[arg(long, conflicts_with = "legacy")]
    mux: bool,
    /// Speak the protocol of one answer at a time, as with `SERVE=1`
    #[arg(long)]
    legacy: bool,
    /// For the variable: a number other than 0 asks for mux where no flag says what to speak
    #[arg(long, env = "SERVE_BATCH", hide = true)]
    serve_batch: Option<OsString>,
    /// For the variable: any value asks for legacy where nothing asks for mux
    #[arg(long, env = "SERVE", hide = true)]
    serve: Option<OsString>,
    /// Most tokens of a conversation [default: 4096, or less where the model was made for less]
    #[arg(long, env = "CTX", value_parser = |text: &str| count(text, 2, u32::MAX))]
    ctx: Option<u32>,
    /// Conversations kept at the same time
    #[arg(long, env = "KV_SLOTS", default_value_t = 1, value_parser = |text: &str| count(text, 1, 16))]
    slots: u32,
    /// Memory budget in GB (10^9 bytes) for weights, experts and conversations
    #[arg(long, env = "RAM_GB", value_name = "GB", value_parser = positive)]
    ram: Option<f64>,
    /// Memory of a device in GB (10^9 bytes) for experts
    #[arg(long, env = "VRAM_GB", value_name = "GB", value_parser = positive)]
    vram: Option<f64>,
    /// Worker threads
    #[arg(long, env = "COLIBRI_THREADS", value_parser = |text: &str| count(text, 1, 1024))]
    threads: Option<u32>,
    /// Instruction set: scalar, avx2, avxvnni, avx512, vnni, neon
    #[arg(long, env = "COLIBRI_ISA", value_parser = Isa::choose)]
    isa: Option<Isa>,
    /// Most tokens of prompts computed in one step; answers in flight wait for it [default: 512,
    /// and while answers are in flight what computes within `--stall-ms`]
    #[arg(long, env = "COLIBRI_PREFILL_CHUNK", value_name = "N", value_parser = prefill_chunk)]
    prefill_chunk: Option<usize>,
    /// How long prompts may hold up answers in flight, in milliseconds
    #[arg(long, env = "COLIBRI_STALL_MS", value_name = "MS", default_value_t = DEFAULT_STALL_MS,
        value_parser = |text: &str| count(text, 1, 600_000))]
    stall_ms: u32,
    /// Experts of each layer that are in memory at most, or `all`, however much memory there is
    /// [default: what the budget holds]
    #[arg(long, env = "COLIBRI_EXPERT_SLOTS", value_name = "N", value_parser = expert_slots)]
    expert_slots: Option<usize>,
    /// A device that holds the hottest experts: `host` is a part of this machine's own memory, of
    /// `--vram` GB beside `--ram`, for tests and measurements [default: none]
    #[arg(long, env = "COLIBRI_DEVICE", value_enum)]
    device: Option<DeviceKind>,
    /// Whether files are read by way of the system's page cache: `auto` goes past it for what would
    /// not stay there, `direct` for all that is not in it
    #[arg(long, env = "COLIBRI_READS", value_enum, default_value_t)]
    reads: Reads,
    /// Seconds that a drive may take to answer a read of an expert, before the requests that need it
    /// fail
    #[arg(
        long, env = "COLIBRI_READ_LIMIT", value_name = "S", value_parser = read_limit,
        default_value = "60"
    )]
    read_limit: Duration,
    /// Whether experts are read before it is certain that they are needed
    #[arg(long, env = "COLIBRI_PREFETCH", value_enum, default_value_t)]
    prefetch: Guessing,
    /// Whether tokens that an answer will probably have are computed before it is certain
    #[arg(long, env = "COLIBRI_SPECULATE", value_enum, default_value_t)]
    speculate: Guessing,
    /// In what the keys and values of conversations are kept: `bf16` takes half of the memory and of
    /// the time to read them, and rounds them
    #[arg(long, env = "COLIBRI_KV", value_enum, default_value_t)]
    kv: Precision,
    /// Folder for what is remembered from one run to the next [default: the model's]
    #[arg(long, env = "COLIBRI_STATE_DIR", value_name = "DIR")]
    state_dir: Option<OsString>,
    /// Whether conversations are kept in that folder, 0 or 1
    #[arg(long, env = "KVSAVE", default_value_t = 1, value_parser = |text: &str| count(text, 0, 1))]
    kvsave: u32,
    /// 1 reports the five most likely tokens with each token
    #[arg(long, env = "SERVE_TOPK", default_value_t = 0, value_parser = |text: &str| count(text, 0, 1))]
    serve_topk: u32,
    /// Records that are sent: all, those of the protocol's first version, or those that the
    /// gateway of the C engine understands
    #[arg(long, env = "COLIBRI_WIRE", value_enum, default_value_t)]
    wire: Wire,
    /// Most tokens of an answer [default: 256]; legacy only
    #[arg(long, env = "NGEN", value_name = "N")]
    ngen: Option<OsString>,
    /// Temperature of text lines, 0 to 2 [default: what the model suggests]; legacy only
    #[arg(long, env = "COLI_TEMP", value_name = "T")]
    temperature: Option<OsString>,
    /// Probability mass that text lines draw from [default: what the model suggests]; legacy only
    #[arg(long, env = "NUCLEUS", value_name = "P")]
    top_p: Option<OsString>,
    /// Makes the draws of a session repeatable; legacy only
    #[arg(long, env = "SEED", value_name = "N")]
    seed: Option<OsString>,
    /// Write `progress <stage> <done> <total>` lines to stderr while loading
    #[arg(long)]
    progress: bool,
}

/// When something is done that will only probably be needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Guessing {
    /// Where such guesses are right often enough to pay.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// What is spoken on stdin and stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Mux,
    Legacy,
}

impl Protocol {
    /// What flags, or else the environment, ask for.
    fn asked(args: &Args) -> Option<Self> {
        let batch = args.serve_batch.as_ref().and_then(|text| text.to_str()?.trim().parse().ok());
        if args.mux {
            Some(Self::Mux)
        } else if args.legacy {
            Some(Self::Legacy)
        } else if batch.is_some_and(|number: i64| number != 0) {
            Some(Self::Mux)
        } else {
            args.serve.as_ref().map(|_| Self::Legacy)
        }
    }
}

fn count(text: &str, low: u32, high: u32) -> Result<u32, String> {
    let fits = text.parse().ok().filter(|n| (low..=high).contains(n));
    fits.ok_or_else(|| format!("must be an integer from {low} to {high}"))
}

fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    let fits = value > 0.0 && value.is_finite();
    if fits { Ok(value) } else { Err("must be a finite number above 0".into()) }
}

/// Reads the settings of legacy, which do not stop an engine that speaks mux: names like `SEED` are
/// common.
fn legacy_options(args: &Args) -> Result<LegacyOptions, String> {
    fn read<T>(
        name: &str,
        value: Option<&OsString>,
        parse: impl Fn(&str) -> Option<T>,
        bound: &str,
    ) -> Result<Option<T>, String> {
        let Some(value) = value else { return Ok(None) };
        let parsed = value.to_str().and_then(parse);
        parsed
            .map(Some)
            .ok_or_else(|| format!("{name} is {}, but must be {bound}", value.display()))
    }
    let count = |text: &str| text.parse().ok().filter(|n| (1..=i32::MAX as u32).contains(n));
    let number = |text: &str| text.parse::<f64>().ok();
    let ngen = read("NGEN (--ngen)", args.ngen.as_ref(), count, "an integer from 1 to 2147483647")?;
    Ok(LegacyOptions {
        ngen: ngen.unwrap_or(legacy::DEFAULT_NGEN),
        temperature: read(
            "COLI_TEMP (--temperature)",
            args.temperature.as_ref(),
            |text| number(text).filter(|t| (0.0..=2.0).contains(t)),
            "a number from 0 to 2",
        )?,
        top_p: read(
            "NUCLEUS (--top-p)",
            args.top_p.as_ref(),
            |text| number(text).filter(|p| *p > 0.0 && *p <= 1.0),
            "a number above 0, at most 1",
        )?,
        seed: read(
            "SEED (--seed)",
            args.seed.as_ref(),
            |text| text.parse().ok(),
            "an integer from 0 to 18446744073709551615",
        )?,
    })
}

fn prefill_chunk(text: &str) -> Result<usize, String> {
    let fits = text.parse().ok().filter(|n| (1..=MAX_PREFILL_CHUNK).contains(n));
    fits.ok_or_else(|| format!("must be an integer from 1 to {MAX_PREFILL_CHUNK}"))
}

fn read_limit(text: &str) -> Result<Duration, String> {
    const MOST_S: f64 = 86_400.0;
    let fits = text.parse().ok().filter(|s| *s > 0.0 && *s <= MOST_S);
    let seconds = fits.ok_or_else(|| format!("must be above 0 and at most {MOST_S} seconds"))?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Slots of a layer; `all` are more than any layer needs.
fn expert_slots(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 16;
    if text == "all" {
        return Ok(MOST);
    }
    let fits = text.parse().ok().filter(|n| (1..=MOST).contains(n));
    fits.ok_or_else(|| format!("must be `all` or an integer from 1 to {MOST}"))
}

/// Runs `colibri-engine` with `args`, the program's name first; returns the exit code.
pub fn run(args: &[String]) -> i32 {
    match std::panic::catch_unwind(|| main(args)) {
        Ok(code) => code,
        // The panic hook has printed the message.
        Err(_) => EXIT_PANIC,
    }
}

/// The command line. A variable that is set to nothing counts as one that is not set, but for `SERVE`,
/// of which the C engine takes any value.
#[expect(clippy::disallowed_methods, reason = "the parser reads the same and says nothing of it")]
fn command() -> clap::Command {
    Args::command().mut_args(|arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        let is_empty = value.is_some_and(|value| value.is_empty());
        if is_empty && arg.get_id() != "serve" { arg.env(Resettable::Reset) } else { arg }
    })
}

fn parse<I>(args: I) -> Result<Args, clap::Error>
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let matches = command().try_get_matches_from(args)?;
    let args = Args::from_arg_matches(&matches)?;
    // What the environment says is no more than a default.
    let is_typed = matches.value_source("model") == Some(ValueSource::CommandLine);
    if is_typed && args.folder.is_some() {
        let message = "the model folder is given twice, by position and with '--model <DIR>'";
        return Err(Args::command().error(ErrorKind::ArgumentConflict, message));
    }
    Ok(args)
}

/// The environment variable that a refused value came from, if it was not on the command line.
fn variable_at_fault(error: &clap::Error, args: &[String]) -> Option<String> {
    let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = refused.split(' ').next()?;
    let command = Args::command();
    let argument = command.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
    let typed = args.iter().any(|arg| arg.split('=').next() == Some(flag));
    let variable = argument.get_env()?.to_str()?;
    (!typed).then(|| variable.to_owned())
}

/// What is said of a command line: an error and a hint, one line each.
fn refusal(error: &clap::Error, args: &[String]) -> [String; 2] {
    let text = error.to_string();
    // What clap adds below is in `--help` too.
    let error_line = one_line(text.split("\n\n").next().unwrap_or_default());
    let hint = variable_at_fault(error, args).map_or_else(
        || "hint: see 'colibri-engine --help'".into(),
        |variable| format!("hint: the value is that of the environment variable {variable}"),
    );
    [error_line, hint]
}

fn main(args: &[String]) -> i32 {
    let args = match parse(args) {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            for line in refusal(&error, args) {
                say(format_args!("{line}"));
            }
            return EXIT_USAGE;
        }
        // --help and --version; nothing is served, so stdout is free.
        Err(error) => return error.print().map_or(EXIT_FAILURE, |()| 0),
    };
    let Some(protocol) = Protocol::asked(&args).or_else(|| {
        let is_program = !std::io::stdin().is_terminal();
        is_program.then_some(Protocol::Mux)
    }) else {
        say("error: colibri-engine speaks a protocol for programs on stdin and stdout");
        say("hint: `colibri chat` talks to people; --mux starts the protocol anyway");
        return EXIT_USAGE;
    };
    let named = args.model.as_ref().filter(|name| !name.is_empty()).map(PathBuf::from);
    let Some(model) = args.folder.clone().or(named) else {
        say("error: no model folder is given");
        say("hint: colibri-engine MODEL, or set COLI_MODEL");
        return EXIT_USAGE;
    };
    let served = match protocol {
        Protocol::Mux => serve(&args, &model, None),
        Protocol::Legacy => match legacy_options(&args) {
            Ok(options) => serve(&args, &model, Some(options)),
            Err(message) => {
                say(format_args!("error: {message}"));
                return EXIT_USAGE;
            }
        },
    };
    match served {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("error: {error}"));
            if let Some(hint) = error.hint() {
                say(format_args!("hint: {hint}"));
            }
            EXIT_FAILURE
        }
    }
}

/// What is left to do when nobody asks any more.
fn end(engine: &mut Engine) {
    engine.runner.save_history();
    if let Some(saved) = engine.runner.saved_history() {
        saved.wait(SAVE_LIMIT);
    }
    engine.runner.finish_conversations();
    if let Some(told) = engine.runner.model.catalog.mirrored() {
        say(format_args!("notice: {}", one_line(told)));
    }
}

/// Where what is remembered of the model is kept; the folder is there then.
fn state_dir(args: &Args, model: &Path) -> Result<PathBuf> {
    let dir = history::state_dir(args.state_dir.as_deref(), model)?;
    if dir != model {
        std::fs::create_dir_all(&dir).map_err(|e| Error::Setting {
            name: "COLIBRI_STATE_DIR (--state-dir)".into(),
            reason: format!("{}: {e}", dir.display()),
        })?;
    }
    Ok(dir)
}

/// Serves legacy with its options, else mux.
fn serve(args: &Args, model: &Path, legacy: Option<LegacyOptions>) -> Result<i32> {
    let options = RunnerOptions {
        ctx: args.ctx.map(|n| n as usize),
        slots: args.slots as usize,
        ram_bytes: args.ram.map(|gb| (gb * 1e9) as u64),
        threads: args.threads.map(|n| n as usize),
        isa: args.isa,
        kv: args.kv,
        expert_slots: args.expert_slots,
        prefetch: args.prefetch == Guessing::Auto,
        device: args.device,
        vram_bytes: args.vram.map(|gb| (gb * 1e9) as u64),
        state_dir: Some(state_dir(args, model)?),
        more_dirs: args.model_dirs.as_deref().map(split_dirs).unwrap_or_default(),
        mirrors: args.model_mirror.as_deref().map(split_dirs).unwrap_or_default(),
        reads: args.reads,
        read_limit: args.read_limit,
        mtp: args.speculate != Guessing::Off,
    };
    let mut reported = None;
    let mut engine = Engine::load(model, &options, &mut |done, total| {
        let due = reported.is_none_or(|at: Instant| at.elapsed() >= PROGRESS_INTERVAL);
        if args.progress && (due || done == total) {
            reported = Some(Instant::now());
            say(format_args!("progress load {done} {total}"));
        }
    })?;
    if let Some(tokens) = args.prefill_chunk {
        engine.set_prefill_chunk(tokens);
    }
    if args.speculate == Guessing::Off {
        engine.never_draft();
    }
    engine.set_stall(Duration::from_millis(args.stall_ms.into()));
    if args.kvsave == 1 {
        let (began, mut reported) = (Instant::now(), Instant::now());
        engine.runner.keep_conversations(&state_dir(args, model)?, &mut |done, total| {
            let is_long = began.elapsed() >= PROGRESS_AFTER;
            if args.progress && is_long && reported.elapsed() >= PROGRESS_INTERVAL {
                reported = Instant::now();
                say(format_args!("progress conversations {done} {total}"));
            }
        })?;
    }
    for notice in &engine.runner.notices {
        say(format_args!("notice: {}", one_line(notice)));
    }
    if let Some(options) = legacy {
        let chat = Chat::load(model)?;
        if let Some(fault) = chat.fault() {
            say(format_args!("notice: {fault}; only exact prompts are answered"));
        }
        let code = legacy::serve(&mut engine, &chat, &options);
        end(&mut engine);
        return code;
    }
    let model_name = std::path::absolute(model)
        .map_err(|e| Error::io(model, e))?
        .file_name()
        .map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    if args.serve_topk == 1 && !args.wire.has_details() {
        say("notice: this wire has no TOPK records; --serve-topk is ignored");
    }
    let default_topk = if args.serve_topk == 1 && args.wire.has_details() { 5 } else { 0 };
    let options = SessionOptions { model_name, default_topk, default_seed: None, wire: args.wire };
    let code = mux::serve(&mut engine, &options);
    end(&mut engine);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Args, clap::Error> {
        parse(std::iter::once(&"colibri-engine").chain(words))
    }

    #[test]
    fn flags_go_before_the_environment_and_mux_before_legacy() {
        use Protocol::{Legacy, Mux};
        // Variables and options are the same to the parser.
        let cases: [(&[&str], Option<Protocol>); 10] = [
            (&[], None),
            (&["--serve", "0"], Some(Legacy)),
            (&["--serve="], Some(Legacy)),
            (&["--serve-batch", "1"], Some(Mux)),
            (&["--serve-batch=-1", "--serve", "1"], Some(Mux)),
            (&["--serve-batch", "0"], None),
            (&["--serve-batch", "0", "--serve", "1"], Some(Legacy)),
            (&["--serve-batch", "yes", "--serve", "1"], Some(Legacy)),
            (&["--mux", "--serve", "1"], Some(Mux)),
            (&["--legacy", "--serve-batch", "1"], Some(Legacy)),
        ];
        for (words, expected) in cases {
            let args = parsed(words).expect("a command line");
            assert_eq!(Protocol::asked(&args), expected, "{words:?}");
        }
        assert!(parsed(&["--mux", "--legacy"]).is_err());
    }

    #[test]
    fn settings_of_legacy_are_checked_for_legacy_alone() {
        let options = |words: &[&str]| legacy_options(&parsed(words).expect("a command line"));
        assert_eq!(options(&[]).expect("defaults").ngen, legacy::DEFAULT_NGEN);
        assert_eq!(options(&["--seed", "7", "--top-p", "0.5"]).expect("fits").seed, Some(7));
        for wrong in [
            ["--ngen", "0"],
            ["--ngen", ""],
            ["--seed=-1", "--mux"],
            ["--temperature", "2.1"],
            ["--temperature", "nan"],
            ["--top-p", "0"],
        ] {
            assert!(options(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_chunk_holds_some_tokens_but_not_any_number() {
        assert_eq!(parsed(&[]).expect("a command line").prefill_chunk, None);
        for (text, expected) in [("1", 1), ("7", 7), ("65536", 65_536)] {
            let args = parsed(&["--prefill-chunk", text]).expect("fits");
            assert_eq!(args.prefill_chunk, Some(expected));
        }
        for wrong in ["0", "", "64k", "-1", "1.5", "65537", "99999999999999999999"] {
            let error = parsed(&[&format!("--prefill-chunk={wrong}")]).expect_err("refused");
            let said = error.to_string();
            assert!(said.contains("an integer from 1 to 65536"), "{wrong:?}: {said}");
            assert!(said.starts_with("error: "), "{said}");
        }
    }

    #[test]
    fn slots_are_a_number_or_all() {
        for (text, expected) in [("1", 1), ("256", 256), ("all", 65_536)] {
            let args = parsed(&["--expert-slots", text]).expect("fits");
            assert_eq!(args.expert_slots, Some(expected));
        }
        for wrong in ["0", "", "-1", "ALL", "1.5", "65537"] {
            let error = parsed(&[&format!("--expert-slots={wrong}")]).expect_err("refused");
            assert!(error.to_string().contains("`all` or an integer"), "{error}");
        }
    }

    #[test]
    fn what_is_refused_is_told_in_one_line() {
        let wrong =
            ["", "0", "-1", "1.5", "x", "1e400", "99999999999999999999", " 3 ", "3\n", "\u{2028}"];
        for flag in ["--ctx", "--slots", "--threads", "--prefill-chunk", "--expert-slots"] {
            for value in wrong {
                let error = parsed(&[&format!("{flag}={value}")]).expect_err("refused");
                let typed = [flag.to_owned()];
                let [line, hint] = refusal(&error, &typed);
                assert!(line.starts_with("error: ") && line.contains("an integer from"), "{line}");
                assert!(!line.contains(['\n', '\u{2028}']), "{line:?}");
                assert_eq!(hint, "hint: see 'colibri-engine --help'");
                assert!(refusal(&error, &[])[1].contains("environment variable"), "{flag}");
            }
        }
        for words in [&["--wire=x"][..], &["--nonsense"], &["--ram"], &["--ram=nan"], &["a", "b"]] {
            let [line, _] = refusal(&parsed(words).expect_err("refused"), &[]);
            assert!(line.starts_with("error: ") && !line.contains('\n'), "{line}");
        }
        let empty = parsed(&["--state-dir=", "m"]).expect("an empty variable is none");
        assert_eq!(state_dir(&empty, Path::new("m")).expect("the model's"), Path::new("m"));
    }

    #[test]
    fn the_model_is_named_once() {
        assert!(parsed(&["--model", "a"]).is_ok() && parsed(&["--mux", "a"]).is_ok());
        let error = parsed(&["--model", "a", "b"]).expect_err("refused").to_string();
        assert!(error.starts_with("error: the model folder is given twice"), "{error}");
        assert!(parsed(&["a", "b"]).is_err());
    }
}
