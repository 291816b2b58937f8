//! A loaded model with its memory: what one forward pass needs, and nothing about requests.
//!
//! Owns: dense weights, expert store, KV slots, threads, budgets. Does not own: text, sampling,
//! scheduling (`engine`).

pub mod budget;
mod conversations;
mod predict;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::cpu::{self, Isa, Memory};
use crate::error::{Result, human_bytes, one_line};
use crate::experts::hang::READ_LIMIT;
use crate::experts::history::{HISTORY, History, Saved, Writer};
use crate::experts::{ExpertSource, ExpertStore};
use crate::gpu::DeviceKind;
use crate::kernels::Kernels;
use crate::kv::saver::Saver;
use crate::kv::{KvSlot, LayerLayout, Precision};
use crate::log::say;
use crate::model::{Decoder, Logits, Model, Row, Step, Survey, Trace};
use crate::store::{ModelPart, Reads};
use crate::telemetry::Phases;
use crate::threads::Team;
use budget::{Budget, Keeper, refuse_hopeless};
pub use predict::Unread;

/// Context where none is asked for.
pub const DEFAULT_CTX: usize = 4096;

/// What a runner is started with.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Most positions of a sequence, lowered to what the model was made for; none takes
    /// [`DEFAULT_CTX`].
    pub ctx: Option<usize>,
    /// KV slots.
    pub slots: usize,
    /// Budget for the whole process in bytes; none takes what is available.
    pub ram_bytes: Option<u64>,
    /// Worker threads; none takes what the system grants.
    pub threads: Option<usize>,
    /// Instruction set; none takes the best.
    pub isa: Option<Isa>,
    /// In what conversations keep keys and values.
    pub kv: Precision,
    /// Experts in memory at most, as a number for each sparse layer; they are not bound to it.
    /// None keeps as many as the budget holds.
    pub expert_slots: Option<usize>,
    /// Whether experts are read that a layer will probably need.
    pub prefetch: bool,
    /// Where experts are kept above memory; none keeps them in memory and on disk alone.
    pub device: Option<DeviceKind>,
    /// Bytes of experts on the device; none takes what it has.
    pub vram_bytes: Option<u64>,
    /// Folder in which to remember what experts were used; none remembers nothing.
    pub state_dir: Option<PathBuf>,
    /// Further folders with shards of the model.
    pub more_dirs: Vec<PathBuf>,
    /// Folders with copies of the model's files, from which experts are read too.
    pub mirrors: Vec<PathBuf>,
    /// Whether files are read by way of the system's page cache.
    pub reads: Reads,
    /// Longest time that a read of an expert is waited for.
    pub read_limit: Duration,
    /// Whether the model's own layer for drafts is loaded, if it has one.
    pub mtp: bool,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            ctx: None,
            slots: 1,
            ram_bytes: None,
            threads: None,
            isa: None,
            kv: Precision::default(),
            expert_slots: None,
            prefetch: true,
            device: None,
            vram_bytes: None,
            state_dir: None,
            more_dirs: Vec::new(),
            mirrors: Vec::new(),
            reads: Reads::Auto,
            read_limit: READ_LIMIT,
            mtp: false,
        }
    }
}

/// A model ready to run.
pub struct Runner {
    /// The dense part.
    pub model: Model,
    /// Routed experts.
    pub experts: ExpertStore,
    /// KV slots.
    pub slots: Vec<KvSlot>,
    /// Bytes of the dense part in memory.
    pub dense_bytes: u64,
    /// Time spent so far.
    pub phases: Phases,
    /// Forward passes so far.
    pub forwards: u64,
    /// Most positions of a sequence.
    pub ctx: usize,
    /// What the engine decided by itself, one line each.
    pub notices: Vec<String>,
    /// Writes conversations to their files, if they are to be kept.
    pub saver: Option<Saver>,
    history: Option<Writer>,
    keeper: Keeper,
    kernels: Kernels,
    team: Team,
}

impl Runner {
    /// Loads the model folder `dir`; `progress` gets bytes done and in all.
    ///
    /// # Errors
    /// What [`Survey::whole`] and [`Survey::load`] refuse, and [`crate::Error::DoesNotFit`] if the
    /// budget is too small.
    pub fn load(
        dir: &Path,
        options: &RunnerOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let before = cpu::anonymous_bytes();
        let wanted = options.ctx.unwrap_or(DEFAULT_CTX);
        let mut survey =
            Survey::begin(dir, &options.more_dirs, wanted, false, options.mtp)?.whole()?;
        let budget = Budget::of_process(options, before);
        budget.begin(before);
        let threads = options.threads.unwrap_or_else(cpu::n_threads);
        let dense_bytes = survey.dense_ram_bytes();
        if let Some(model) = &mut survey.model {
            model.precision = options.kv;
            let shape = (wanted.min(model.max_positions), threads);
            refuse_hopeless(model, dense_bytes, before, options, shape, budget)?;
        }
        // Each byte of it is read once.
        survey.catalog().read_past_cache(ModelPart::Dense, options.reads != Reads::Cached);
        let mut model = survey.load(progress)?;
        model.precision = options.kv;
        let mut notices = model.notices.clone();
        notices.extend(model.catalog.attach_mirrors(&options.mirrors));
        if options.reads == Reads::Direct && !model.catalog.is_past_cache(ModelPart::Dense) {
            notices.push("these files can be read by way of the page cache only".into());
        }
        let ctx = wanted.min(model.max_positions);
        if options.ctx.is_some() && ctx < wanted {
            notices.push(format!(
                "context lowered from {wanted} to {ctx} tokens, the most this model was made for"
            ));
        }
        if let Some(ram) = options.ram_bytes.filter(|&ram| ram > budget.most) {
            notices.push(format!(
                "{} of the {} asked for are used: the control group leaves no more",
                human_bytes(budget.most),
                human_bytes(ram)
            ));
        }
        let left = Memory::read().available_bytes;
        if options.ram_bytes.is_none() && left == 0 {
            notices.push(
                "how much memory is available is unknown here; --ram bounds what experts take"
                    .into(),
            );
        }
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let kernels = Kernels::new(isa);
        let team = Team::new(threads);
        let layouts = model.layouts();
        let slots: Vec<KvSlot> = (0..options.slots).map(|_| KvSlot::new(&layouts)).collect();
        let readers = budget.readers(&model);
        let mut keeper = Keeper::new(budget, &model);
        let most = keeper.most_for_experts().min(slots_bytes(&model, options.expert_slots));
        let mut experts = ExpertStore::new(
            &model.catalog,
            model.experts.clone(),
            model.n_experts,
            model.top_k,
            // That there is room for these was found before anything was loaded.
            most.max(budget::floor_bytes(&model)),
        )?;
        experts.set_read_limit(options.read_limit);
        experts.read_on(readers);
        if !options.prefetch {
            experts.never_guess();
        }
        keeper.make_room(&mut experts, std::iter::empty(), 0);
        let budget = experts.budget_bytes();
        let past_cache = match options.reads {
            Reads::Cached => false,
            Reads::Direct => true,
            // What is given up is found there again only if there is room for all.
            Reads::Auto => experts.disk_bytes() > left.saturating_sub(budget),
        };
        model.catalog.read_past_cache(ModelPart::Experts, past_cache);
        if experts.total_bytes() > budget {
            notices.push(format!(
                "{} of {} of routed experts fit in memory; the others are read when needed{}",
                human_bytes(budget),
                human_bytes(experts.total_bytes()),
                if past_cache { ", past the page cache" } else { "" }
            ));
        }
        if let Some(kind) = options.device {
            experts.use_device(kind.open(options.vram_bytes, isa)?);
        } else if options.vram_bytes.is_some() {
            notices.push("no device is in use, so --vram changes nothing".into());
        }
        let history = match &options.state_dir {
            Some(state_dir) if model.n_experts > 0 => {
                let history = remember(state_dir, dir, &model, &mut experts, &mut notices)?;
                Some(Writer::start(history))
            }
            _ => None,
        };
        Ok(Self {
            model,
            experts,
            slots,
            dense_bytes,
            phases: Phases::default(),
            forwards: 0,
            ctx,
            notices,
            saver: None,
            history,
            keeper,
            kernels,
            team,
        })
    }

    /// Runs `rows` and returns logits `[wanted rows][vocab]`; the tokens are committed to their
    /// slots only if all went well.
    ///
    /// # Errors
    /// Those of [`crate::model::Decoder::forward`]; slots are unchanged then.
    ///
    /// # Panics
    /// If a row lies behind the context, for which there is no budget.
    pub fn forward(
        &mut self,
        rows: &[Row],
        wanted: Logits,
        trace: Option<&mut Trace>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        self.forward_with_states(rows, wanted, trace, None, interrupted)
    }

    /// As [`Self::forward`]; the normed states of all rows, `[rows][hidden]`, are put into `states`.
    ///
    /// # Errors
    /// As there.
    pub fn forward_with_states(
        &mut self,
        rows: &[Row],
        wanted: Logits,
        trace: Option<&mut Trace>,
        states: Option<&mut Vec<f32>>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        let logits = match wanted {
            Logits::All => rows.len(),
            Logits::Of(rows) => rows.len(),
        };
        self.make_room(rows, rows.len(), logits);
        let start = Instant::now();
        let logits = self.with_step(rows, trace, states, interrupted, |decoder, step| {
            decoder.forward(step, wanted)
        });
        // One that failed tells nothing of how long they take.
        let slower_way =
            logits.is_ok().then(|| self.experts.end_step(rows.len(), start.elapsed())).flatten();
        for notice in self.experts.take_notices().into_iter().chain(slower_way) {
            say(format_args!("notice: {}", one_line(&notice)));
        }
        let logits = logits?;
        self.forwards += 1;
        for row in rows {
            self.slots[row.slot].commit(&[row.token]);
        }
        self.keeper.watch(&mut self.experts);
        Ok(logits)
    }

    /// Makes room for a step of `n` rows and so many logits, `rows` of which add to their slots.
    fn make_room(&mut self, rows: &[Row], n: usize, logits: usize) {
        let held = self.saver.as_ref().map_or(0, Saver::held_bytes);
        let step = self.step_bytes(n, logits).saturating_add(held);
        let mut lengths: Vec<usize> = self.slots.iter().map(|slot| slot.tokens().len()).collect();
        for row in rows {
            lengths[row.slot] = lengths[row.slot].max(row.position + 1);
        }
        self.keeper.make_room(&mut self.experts, lengths.into_iter(), step);
    }

    /// Runs a part of the model on `rows`.
    fn with_step<R>(
        &mut self,
        rows: &[Row],
        trace: Option<&mut Trace>,
        states: Option<&mut Vec<f32>>,
        interrupted: &mut dyn FnMut() -> bool,
        run: impl FnOnce(&Decoder, &mut Step) -> R,
    ) -> R {
        let mut step = Step {
            kernels: &self.kernels,
            team: &self.team,
            rows,
            slots: &mut self.slots,
            experts: &mut self.experts,
            phases: &mut self.phases,
            trace,
            states,
            selection: Vec::new(),
            interrupted,
        };
        run(&self.model.decoder, &mut step)
    }

    /// Allows at most `bytes` of experts in memory, at least those of one row, until there has been
    /// room for more for a while.
    pub fn lower_experts(&mut self, bytes: u64) {
        self.keeper.lower(&mut self.experts, bytes);
    }

    fn step_bytes(&self, rows: usize, logits: usize) -> u64 {
        self.model.step_bytes(rows, logits, self.team.n_threads(), self.ctx)
    }

    /// How many of `wanted` rows of a prompt are to be computed at once, by what memory there is.
    pub fn most_rows(&self, wanted: usize) -> usize {
        let lengths = self.slots.iter().map(|slot| slot.tokens().len());
        let step = |rows| self.step_bytes(rows, 1);
        self.keeper.most_rows(wanted, self.experts.floor_bytes(), lengths, step)
    }

    /// Begins to write down what experts were used, for the next run. What cannot be written is told
    /// once.
    pub fn save_history(&self) {
        if let Some(history) = &self.history {
            history.save(self.experts.heat().counts());
        }
    }

    /// What was last to be written down; none if nothing is remembered.
    pub fn saved_history(&self) -> Option<Saved> {
        self.history.as_ref().map(Writer::saved)
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Instruction set level in use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }

    /// Worker threads in use.
    pub fn n_threads(&self) -> usize {
        self.team.n_threads()
    }
}

/// What `state_dir` remembers of the use of the experts of `model` in `dir`.
///
/// # Errors
/// Those of its configuration.
pub fn history_of(state_dir: &Path, dir: &Path, model: &Model) -> Result<History> {
    let family = Config::open(dir)?.model_type()?.to_owned();
    let n_layers = model.decoder.layers.len();
    Ok(History::new(state_dir, &family, n_layers, &model.sparse_layers, model.n_experts))
}

/// Finds the history of the model in `dir` and takes in what it holds.
fn remember(
    state_dir: &Path,
    dir: &Path,
    model: &Model,
    experts: &mut ExpertStore,
    notices: &mut Vec<String>,
) -> Result<History> {
    let history = history_of(state_dir, dir, model)?;
    match history.read() {
        Ok(Some(counts)) => experts.remember(&counts),
        Ok(None) => {}
        Err(reason) => {
            let path = state_dir.join(HISTORY);
            notices.push(format!("{} is of no use and will be replaced: {reason}", path.display()));
        }
    }
    Ok(history)
}

/// Bytes that a conversation of `ctx` tokens takes.
pub fn conversation_bytes(layouts: &[LayerLayout], ctx: usize) -> u64 {
    layouts.iter().map(|layout| layout.bytes(ctx)).fold(0, u64::saturating_add)
}

/// Bytes of as many experts as `expert_slots` allows, whatever the budget.
pub fn slots_bytes(model: &Model, expert_slots: Option<usize>) -> u64 {
    expert_slots.map_or(u64::MAX, |slots| {
        let largest = model.experts.iter().map(ExpertSource::ram_bytes).max().unwrap_or(0);
        largest.saturating_mul((slots * model.sparse_layers.len()) as u64)
    })
}
