//! The device tier on the crate's public interface: whatever a device holds, and however it fails,
//! the bits are those of the processor alone.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use colibri::cpu::Isa;
use colibri::expert::Expert;
use colibri::experts::{Course, ExpertSource, ExpertStore, Routed, Tools};
use colibri::gpu::host::HostDevice;
use colibri::gpu::{Device, Fault, Work};
use colibri::model::{Logits, Row};
use colibri::runner::{Runner, RunnerOptions};
use colibri::telemetry::{Phases, Uses};
use colibri::threads::Team;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// What a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Upload,
    Uploaded,
    Submit,
    Collect,
}

/// A device of host memory that fails when it is told to, and whose uploads end when they are
/// asked about so often, or waited for.
struct Double {
    host: HostDevice,
    fault: Option<(Call, usize, Fault)>,
    polls_an_upload: usize,
    polls: usize,
    /// Whether it computes some experts only.
    is_picky: bool,
    most_used: Arc<AtomicU64>,
}

impl Double {
    fn new(bytes: u64, fault: Option<(Call, usize, Fault)>) -> Self {
        Self {
            host: HostDevice::new(bytes, Isa::detect()),
            fault,
            polls_an_upload: 1,
            polls: 0,
            is_picky: false,
            most_used: Arc::default(),
        }
    }

    /// What comes of this call, the calls of its kind before it being counted.
    fn called(&mut self, call: Call) -> Result<(), Fault> {
        match &mut self.fault {
            Some((failing, calls, fault)) if *failing == call => {
                *calls = calls.wrapping_sub(1);
                if *calls == 0 { Err(fault.clone()) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}

impl Device for Double {
    fn name(&self) -> &'static str {
        "a double"
    }

    fn total_bytes(&self) -> u64 {
        self.host.total_bytes()
    }

    fn budget_bytes(&self) -> u64 {
        self.host.budget_bytes()
    }

    fn used_bytes(&self) -> u64 {
        self.host.used_bytes()
    }

    fn expert_bytes(&self, expert: &Expert) -> Option<u64> {
        self.host.expert_bytes(expert).filter(|_| !self.is_picky || expert.gate.get(0, 0) > 0.0)
    }

    fn upload(&mut self, key: usize, expert: Arc<Expert>) -> Result<(), Fault> {
        self.called(Call::Upload)?;
        assert!(self.expert_bytes(&expert).is_some(), "it does not compute that");
        self.host.upload(key, expert)?;
        self.most_used.fetch_max(self.used_bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn uploaded(&mut self, wait: bool) -> Option<(usize, Result<(), Fault>)> {
        self.polls += 1;
        if !wait && self.polls < self.polls_an_upload {
            return None;
        }
        self.polls = 0;
        let (key, ended) = self.host.uploaded(true)?;
        let ended = ended
            .and_then(|()| self.called(Call::Uploaded).inspect_err(|_| self.host.release(key)));
        Some((key, ended))
    }

    fn release(&mut self, key: usize) {
        self.host.release(key);
    }

    fn submit(&mut self, x: &[f32], work: &[Work]) -> Result<(), Fault> {
        assert!(!work.is_empty() && work.iter().all(|work| work.rows.is_sorted()));
        self.called(Call::Submit)?;
        self.host.submit(x, work)
    }

    fn collect(&mut self) -> Result<Vec<Vec<f32>>, Fault> {
        let done = self.host.collect();
        self.called(Call::Collect)?;
        done
    }
}

fn load(name: &str) -> Runner {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name);
    load_folder(&dir, &RunnerOptions::default())
}

fn load_folder(dir: &Path, options: &RunnerOptions) -> Runner {
    Runner::load(dir, options, &mut |_, _| {}).expect("the fixture loads")
}

fn largest(runner: &Runner) -> u64 {
    runner.model.experts.iter().map(ExpertSource::ram_bytes).max().expect("experts")
}

/// The runner's experts with room for so many in RAM.
fn store(runner: &Runner, slots: usize) -> ExpertStore {
    let model = &runner.model;
    let bytes = largest(runner) * slots as u64;
    let sources = model.experts.clone();
    ExpertStore::new(&model.catalog, sources, model.n_experts, model.top_k, bytes).expect("fits")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Numbers that look like chance.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A layer's output for rows that take `experts`, `[rows][top_k]`.
fn run(store: &mut ExpertStore, runner: &Runner, layer: usize, experts: &[Vec<usize>]) -> Vec<u32> {
    let hidden = runner.model.decoder.embed.n_in;
    let x: Vec<f32> = (0..experts.len() * hidden).map(|i| (i as f32 * 0.7).sin()).collect();
    let weight = |rank: usize| 0.5 / (rank + 1) as f32;
    let choice = |experts: &Vec<usize>| Routed {
        experts: experts.clone(),
        weights: (0..experts.len()).map(weight).collect(),
    };
    let routed: Vec<Routed> = experts.iter().map(choice).collect();
    let team = Team::new(1);
    let tools = Tools { kernels: runner.kernels(), team: &team };
    let course = Course { phases: &mut Phases::default(), interrupted: &mut || false };
    let y = store.run(layer, &x, &routed, tools, course, || None);
    bits(&y.expect("experts are read"))
}

/// What is told of where experts are, which never contradicts itself.
fn check_accounts(store: &ExpertStore, ram_bytes: u64, vram_bytes: u64) {
    let (rows, cols) = store.geometry();
    let tiers = store.tiers();
    assert_eq!(tiers.vram + tiers.ram + tiers.disk, rows * cols);
    let map = store.map();
    let shown = |tier| map.iter().filter(|&&cell| cell >> 6 == tier).count();
    assert_eq!([shown(2), shown(1), shown(0)], [tiers.vram, tiers.ram, tiers.disk]);
    assert!(tiers.ram_bytes <= ram_bytes && tiers.vram_bytes <= vram_bytes, "{tiers:?}");
    match store.device() {
        Some(device) => {
            assert_eq!(device.experts, tiers.vram);
            assert!((tiers.vram_bytes..=vram_bytes).contains(&device.used_bytes), "{device:?}");
        }
        None => assert_eq!((tiers.vram, tiers.vram_bytes), (0, 0)),
    }
}

fn on_device(store: &ExpertStore) -> Vec<usize> {
    let map = store.map();
    (0..map.len()).filter(|&index| map[index] >> 6 == 2).collect()
}

#[derive(Clone, Debug)]
struct Case {
    ram_slots: usize,
    vram_slots: usize,
    polls_an_upload: usize,
    is_picky: bool,
    fault: Option<(Call, usize, Fault)>,
    remembers: bool,
    seed: u64,
    steps: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let call = prop_oneof![
        Just(Call::Upload),
        Just(Call::Uploaded),
        Just(Call::Submit),
        Just(Call::Collect)
    ];
    let fault = prop_oneof![Just(Fault::OutOfMemory), Just(Fault::Lost("pulled out".into()))];
    let fault = prop::option::of((call, 1usize..20, fault));
    (
        1usize..12,
        0usize..30,
        1usize..40,
        any::<bool>(),
        fault,
        any::<bool>(),
        any::<u64>(),
        1usize..60,
    )
        .prop_map(
            |(ram_slots, vram_slots, polls_an_upload, is_picky, fault, remembers, seed, steps)| {
                Case {
                    ram_slots,
                    vram_slots,
                    polls_an_upload,
                    is_picky,
                    fault,
                    remembers,
                    seed,
                    steps,
                }
            },
        )
}

#[test]
fn no_device_changes_a_bit_or_takes_more_than_its_budget() {
    // Experts of several widths; experts with biases, another activation and MXFP4.
    for name in ["qwen3_moe_mixed", "gpt_oss_mxfp4"] {
        let runner = load(name);
        let (model, largest) = (&runner.model, largest(&runner));
        let (layers, cols, top_k) = (model.sparse_layers.len(), model.n_experts, model.top_k);
        let mut tests = TestRunner::new(Config { cases: 60, ..Config::default() });
        let outcome = tests.run(&case(), |case| {
            let ram_slots = case.ram_slots.max(top_k);
            let vram_bytes = largest * case.vram_slots as u64;
            let mut double = Double::new(vram_bytes, case.fault.clone());
            (double.polls_an_upload, double.is_picky) = (case.polls_an_upload, case.is_picky);
            let most_used = Arc::clone(&double.most_used);
            let (mut plain, mut tested) =
                (store(&runner, layers * cols), store(&runner, ram_slots));
            tested.use_device(Box::new(double));
            let mut dice = Dice(case.seed);
            if case.remembers {
                let counts: Vec<u64> = (0..layers * cols).map(|_| dice.below(9) as u64).collect();
                tested.remember(&counts);
            }
            let mut taken = 0;
            for step in 0..case.steps {
                let rows = if dice.below(8) == 0 { 1 + dice.below(9) } else { 1 };
                // Which ones are hot changes now and then.
                let hot = step / 20;
                for layer in 0..layers {
                    let mut choice = |_| {
                        let mut experts = Vec::new();
                        while experts.len() < top_k {
                            let range = if dice.below(4) == 0 { cols } else { cols / 2 };
                            let expert = (hot + dice.below(range)) % cols;
                            if !experts.contains(&expert) {
                                experts.push(expert);
                            }
                        }
                        experts
                    };
                    let experts: Vec<Vec<usize>> = (0..rows).map(&mut choice).collect();
                    let expected = run(&mut plain, &runner, layer, &experts);
                    let found = run(&mut tested, &runner, layer, &experts);
                    prop_assert!(found == expected, "step {step}, layer {layer}");
                    check_accounts(&tested, largest * ram_slots as u64, vram_bytes);
                    taken += rows * top_k;
                }
            }
            prop_assert!(most_used.load(Ordering::Relaxed) <= vram_bytes);
            prop_assert_eq!(tested.heat().uses().total(), taken as u64);
            prop_assert!(tested.take_notices().len() <= 1, "one for one fault");
            prop_assert!(case.fault.is_some() || tested.device().is_some());
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn the_hottest_experts_go_to_the_device_and_make_room_for_hotter_ones() {
    let runner = load("gpt_oss");
    let (layers, cols) = (runner.model.sparse_layers.len(), runner.model.n_experts);
    let vram_bytes = 2 * layers as u64 * largest(&runner);
    let mut store = store(&runner, layers * cols);
    store.use_device(Box::new(Double::new(vram_bytes, None)));
    let of_each_layer = |experts: [usize; 2]| -> Vec<usize> {
        (0..layers).flat_map(|layer| experts.map(|expert| layer * cols + expert)).collect()
    };
    let take = |store: &mut ExpertStore, experts: [usize; 2], steps| {
        for _ in 0..steps {
            for layer in 0..layers {
                run(store, &runner, layer, &[experts.to_vec()]);
            }
        }
    };
    take(&mut store, [0, 1], 20);
    assert_eq!(on_device(&store), of_each_layer([0, 1]));
    let before = store.heat().uses();
    assert!(before.vram > 0 && before.missed == 2 * layers as u64, "{before:?}");
    // Somewhat warmer ones are not worth an upload.
    take(&mut store, [2, 3], 24);
    assert_eq!(on_device(&store), of_each_layer([0, 1]));
    take(&mut store, [2, 3], 60);
    assert_eq!(on_device(&store), of_each_layer([2, 3]));
    // There was room for those given up, so that they are read again before anything needs them.
    for _ in 0..1000 {
        take(&mut store, [2, 3], 1);
        if store.tiers().disk == layers * cols - 4 * layers {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let before = store.heat().uses();
    take(&mut store, [0, 1], 1);
    let Uses { ahead, missed, .. } = store.heat().uses();
    assert_eq!((ahead - before.ahead, missed - before.missed), (2 * layers as u64, 0));
    assert_eq!(store.take_notices(), [""; 0]);
}

#[test]
fn what_an_earlier_run_used_most_goes_there_first() {
    let runner = load("gpt_oss");
    let (layers, cols) = (runner.model.sparse_layers.len(), runner.model.n_experts);
    let mut store = store(&runner, layers * cols);
    store.use_device(Box::new(Double::new(3 * largest(&runner), None)));
    let hottest = [cols - 1, cols + 5, 2 * cols + 4];
    let mut counts = vec![1; layers * cols];
    for index in hottest {
        counts[index] = 1000;
    }
    store.remember(&counts);
    for _ in 0..1000 {
        for layer in 0..layers {
            run(&mut store, &runner, layer, &[vec![0, 1]]);
        }
        if on_device(&store) == hottest && store.tiers().disk == 0 {
            return;
        }
        // They are read beside this.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{:?}, {:?}", on_device(&store), store.tiers());
}

#[test]
fn a_device_that_fails_is_told_of_once_and_done_without() {
    let runner = load("gpt_oss");
    let (layers, cols) = (runner.model.sparse_layers.len(), runner.model.n_experts);
    let all = largest(&runner) * (layers * cols) as u64;
    let lost = || Fault::Lost("pulled\nout".into());
    for call in [Call::Upload, Call::Uploaded, Call::Submit, Call::Collect] {
        for k in [1, 2, 7] {
            for fault in [lost(), Fault::OutOfMemory] {
                // As few in RAM as can be, and all.
                for ram_slots in [2, layers * cols] {
                    let mut plain = store(&runner, layers * cols);
                    let mut tested = store(&runner, ram_slots);
                    tested.use_device(Box::new(Double::new(all, Some((call, k, fault.clone())))));
                    for step in 0..30 {
                        for layer in 0..layers {
                            let experts = [vec![step % cols, 7], vec![step / 2 % 7, 7]];
                            let expected = run(&mut plain, &runner, layer, &experts);
                            assert_eq!(run(&mut tested, &runner, layer, &experts), expected);
                            check_accounts(&tested, all, all);
                        }
                    }
                    let notices = tested.take_notices();
                    let goes_on = fault == Fault::OutOfMemory
                        && matches!(call, Call::Upload | Call::Uploaded);
                    let said = match (&fault, goes_on) {
                        (_, true) => "a double is out of memory with ",
                        (Fault::OutOfMemory, false) => "a double is lost: out of memory; from",
                        _ => "a double is lost: pulled\nout; from now on the processor computes",
                    };
                    assert!(
                        notices.len() == 1 && notices[0].starts_with(said),
                        "{call:?} {k} {fault:?}: {notices:?}"
                    );
                    assert_eq!(tested.device().is_some(), goes_on);
                }
            }
        }
    }
}

/// Logits of prompts in chunks and of the tokens after them, of one conversation and of three.
fn generate(runner: &mut Runner) -> Vec<u32> {
    let vocab = runner.model.decoder.vocab() as u32;
    let mut all = Vec::new();
    let mut forward = |runner: &mut Runner, rows: &[Row]| {
        let logits = runner.forward(rows, Logits::All, None, &mut || false).expect("a pass");
        all.extend(bits(&logits));
    };
    for slot in 0..3 {
        for part in (0..40).collect::<Vec<usize>>().chunks(7 + slot) {
            let row = |&position: &usize| {
                let token = (position * (5 + slot)) as u32 % vocab;
                Row { slot, position, token }
            };
            forward(runner, &part.iter().map(row).collect::<Vec<Row>>());
        }
    }
    for position in 40..60 {
        let row = |slot| Row { slot, position, token: (position * 3 + slot) as u32 % vocab };
        forward(runner, &(0..3).map(row).collect::<Vec<Row>>());
    }
    all
}

#[test]
fn whole_passes_have_the_same_bits_on_the_device_of_host_memory() {
    let options = RunnerOptions { slots: 3, ..RunnerOptions::default() };
    for name in ["gpt_oss_mxfp4", "qwen3_moe", "deepseek_v3_fp8", "qwen3_5_moe"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle").join(name);
        let expected = generate(&mut load_folder(&dir, &options));
        for (vram_slots, ram_slots) in [(1, 4), (6, 5), (6, 1000), (1000, 4), (1000, 1000)] {
            let mut runner = load_folder(&dir, &options);
            runner.experts = store(&runner, ram_slots);
            let bytes = largest(&runner) * vram_slots;
            runner.experts.use_device(Box::new(HostDevice::new(bytes, Isa::detect())));
            assert!(generate(&mut runner) == expected, "{name}: {vram_slots}, {ram_slots}");
            let (tiers, uses) = (runner.experts.tiers(), runner.experts.heat().uses());
            assert!(tiers.vram > 0 && uses.vram > 0, "{name}: {tiers:?}, {uses:?}");
        }
    }
}
