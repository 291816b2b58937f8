//! A loaded model with its memory: what one forward pass needs, and nothing about requests.
//!
//! Owns: dense weights, expert store, KV slots, threads, budgets. Does not own: text, sampling,
//! scheduling (`engine`).

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::cpu::{self, Isa, Memory};
use crate::error::{Error, Result, human_bytes};
use crate::experts::history::{HISTORY, History};
use crate::experts::{ExpertSource, ExpertStore};
use crate::kernels::Kernels;
use crate::kv::{KvSlot, LayerLayout};
use crate::model::{Logits, Model, Row, Step, Survey, Trace};
use crate::store::{ModelPart, Reads};
use crate::telemetry::Phases;
use crate::threads::Team;

/// Context where none is asked for.
pub const DEFAULT_CTX: usize = 4096;

/// Share of the available memory that is planned with when no budget is given.
const AUTO_SHARE: f64 = 0.9;

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
    /// Experts in memory at most, as a number for each sparse layer; they are not bound to it.
    /// None keeps as many as the budget holds.
    pub expert_slots: Option<usize>,
    /// Folder in which to remember what experts were used; none remembers nothing.
    pub state_dir: Option<PathBuf>,
    /// Further folders with shards of the model.
    pub more_dirs: Vec<PathBuf>,
    /// Folders with copies of the model's files, from which experts are read too.
    pub mirrors: Vec<PathBuf>,
    /// Whether files are read by way of the system's page cache.
    pub reads: Reads,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            ctx: None,
            slots: 1,
            ram_bytes: None,
            threads: None,
            isa: None,
            expert_slots: None,
            state_dir: None,
            more_dirs: Vec::new(),
            mirrors: Vec::new(),
            reads: Reads::Auto,
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
    history: Option<History>,
    kernels: Kernels,
    team: Team,
}

impl Runner {
    /// Loads the model folder `dir`; `progress` gets bytes done and in all.
    ///
    /// # Errors
    /// What [`Survey::whole`] and [`Survey::load`] refuse, and [`Error::DoesNotFit`] if the budget is too small.
    pub fn load(
        dir: &Path,
        options: &RunnerOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let before = cpu::resident_bytes();
        let wanted = options.ctx.unwrap_or(DEFAULT_CTX);
        let survey = Survey::begin(dir, &options.more_dirs, wanted, false)?.whole()?;
        let available = Memory::read().available_bytes;
        refuse_hopeless_budget(
            survey.dense_ram_bytes(),
            &Shares::of(options, available, available, before, 0),
        )?;
        // Each byte of it is read once.
        survey.catalog().read_past_cache(ModelPart::Dense, options.reads != Reads::Cached);
        let model = survey.load(progress)?;
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
        let layouts = model.layouts();
        let kv_bytes = conversation_bytes(&layouts, ctx).saturating_mul(options.slots as u64);
        let resident = cpu::resident_bytes().max(before);
        let left = Memory::read().available_bytes;
        if options.ram_bytes.is_none() && left == 0 {
            notices.push(
                "how much memory is available is unknown here; --ram bounds what experts take"
                    .into(),
            );
        }
        let shares = Shares::of(options, available, left, resident, kv_bytes);
        let mut experts = place_experts(&model, &shares, kv_bytes, options.expert_slots)?;
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
        let history = match &options.state_dir {
            Some(state_dir) if model.n_experts > 0 => {
                Some(remember(state_dir, dir, &model, &mut experts, &mut notices)?)
            }
            _ => None,
        };
        let kernels = Kernels::new(options.isa.unwrap_or_else(Isa::detect));
        let team = Team::new(options.threads.unwrap_or_else(cpu::n_threads));
        let slots = (0..options.slots).map(|_| KvSlot::new(&layouts)).collect();
        Ok(Self {
            model,
            experts,
            slots,
            dense_bytes: survey.dense_ram_bytes(),
            phases: Phases::default(),
            forwards: 0,
            ctx,
            notices,
            history,
            kernels,
            team,
        })
    }

    /// Runs `rows` and returns logits `[wanted rows][vocab]`; the tokens are committed to their
    /// slots only if all went well.
    ///
    /// # Errors
    /// Those of [`crate::model::Decoder::forward`]; slots are unchanged then.
    pub fn forward(
        &mut self,
        rows: &[Row],
        wanted: Logits,
        trace: Option<&mut Trace>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>> {
        let mut step = Step {
            kernels: &self.kernels,
            team: &self.team,
            rows,
            slots: &mut self.slots,
            experts: &mut self.experts,
            phases: &mut self.phases,
            trace,
            selection: Vec::new(),
            interrupted,
        };
        let logits = self.model.decoder.forward(&mut step, wanted)?;
        self.forwards += 1;
        for row in rows {
            self.slots[row.slot].commit(&[row.token]);
        }
        Ok(logits)
    }

    /// Writes down what experts were used, for the next run. What cannot be written is told once.
    pub fn save_history(&mut self) {
        let Some(history) = &self.history else { return };
        if let Err(error) = history.write(self.experts.heat().counts()) {
            eprintln!("notice: the use of experts is not remembered: {error}");
            self.history = None;
        }
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

/// What a process may use of the memory, and what is taken of that before experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Bytes there are.
    pub have: u64,
    /// Bytes of them that are taken.
    pub taken: u64,
    /// Bytes that were to be had before the dense part was loaded.
    before_dense: u64,
    /// Whether somebody set the budget.
    asked_for: bool,
}

impl Shares {
    /// With `available` bytes before the dense part is loaded and `left` after it, when the process
    /// takes `resident`, and `conversations` bytes of conversations to come.
    pub fn of(
        options: &RunnerOptions,
        available: u64,
        left: u64,
        resident: u64,
        conversations: u64,
    ) -> Self {
        let share = |bytes: u64| {
            // Where nothing is known, nothing is refused.
            if bytes == 0 { u64::MAX } else { (bytes as f64 * AUTO_SHARE) as u64 }
        };
        match options.ram_bytes {
            Some(ram) => Self {
                have: ram,
                taken: resident.saturating_add(conversations),
                before_dense: ram,
                asked_for: true,
            },
            None => Self {
                have: share(left),
                taken: conversations,
                before_dense: share(available),
                asked_for: false,
            },
        }
    }

    /// Bytes that are left for experts.
    pub fn for_experts(&self) -> u64 {
        self.have.saturating_sub(self.taken)
    }
}

/// Refuses, before they are read, dense weights that by themselves exceed what there is.
///
/// # Errors
/// [`Error::DoesNotFit`]
pub fn refuse_hopeless_budget(dense: u64, shares: &Shares) -> Result<()> {
    if dense <= shares.before_dense {
        return Ok(());
    }
    let hint = if shares.asked_for {
        "raise --ram, or leave it out to use what is available"
    } else {
        "free some memory, or make the model smaller with 'colibri convert'"
    };
    Err(Error::DoesNotFit {
        what: "cannot place the dense weights".into(),
        need_bytes: dense,
        have_bytes: shares.before_dense,
        hint: hint.into(),
    })
}

/// A store of the model's experts within what `shares` leave.
///
/// # Errors
/// [`Error::DoesNotFit`] if that does not hold what one token needs.
pub fn place_experts(
    model: &Model,
    shares: &Shares,
    conversations: u64,
    expert_slots: Option<usize>,
) -> Result<ExpertStore> {
    let slots_bytes = expert_slots.map_or(u64::MAX, |slots| {
        let largest = model.experts.iter().map(ExpertSource::ram_bytes).max().unwrap_or(0);
        largest.saturating_mul((slots * model.sparse_layers.len()) as u64)
    });
    ExpertStore::new(
        &model.catalog,
        model.experts.clone(),
        model.n_experts,
        model.top_k,
        shares.for_experts().min(slots_bytes),
    )
    .map_err(|error| with_reserves(error, shares.have, shares.taken, conversations))
}

/// Turns the expert store's shortage into one about the whole budget.
fn with_reserves(error: Error, have: u64, taken: u64, kv: u64) -> Error {
    match error {
        Error::DoesNotFit { what, need_bytes, hint, .. } => Error::DoesNotFit {
            what: format!(
                "{what} beside the {} that are taken, {} of them by conversations of full length",
                human_bytes(taken),
                human_bytes(kv)
            ),
            need_bytes: need_bytes.saturating_add(taken),
            have_bytes: have,
            hint,
        },
        error => error,
    }
}
