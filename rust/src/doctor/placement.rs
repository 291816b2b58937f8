//! What an engine would place where, found before it loads.

use std::cmp::Reverse;
use std::path::Path;

use serde_json::{Value, json};

use super::Finding;
use crate::cpu::{self, Memory};
use crate::error::{Error, human_bytes};
use crate::experts::ExpertSource;
use crate::model::{Model, Survey};
use crate::runner::{self, DEFAULT_CTX, RunnerOptions, Shares};

/// Least context that is worth asking for.
const LEAST_CTX: usize = 16;

/// What the model in `dir` takes of the memory that an engine of these options would have, and what
/// of it stays on disk; a JSON object.
pub fn place(
    dir: &Path,
    survey: &Survey,
    model: &Model,
    options: &RunnerOptions,
    errors: &mut Vec<Error>,
    findings: &mut Vec<Finding>,
) -> Value {
    let memory = Memory::read();
    let dense = survey.dense_ram_bytes();
    let ctx = options.ctx.unwrap_or(DEFAULT_CTX).min(model.max_positions);
    let layouts = model.layouts();
    let conversation = runner::conversation_bytes(&layouts, ctx);
    let of_all = |conversation: u64| conversation.saturating_mul(options.slots as u64);
    let sum = |size: fn(&ExpertSource) -> u64| model.experts.iter().map(size).sum::<u64>();
    let largest = |size: fn(&ExpertSource) -> u64| model.experts.iter().map(size).max();
    let floor = largest(ExpertSource::ram_bytes).unwrap_or(0) * model.top_k as u64;
    let resident = cpu::resident_bytes();
    // What is available once the dense part is loaded.
    let left = memory.available_bytes.saturating_sub(dense);
    let shares = |conversations| {
        let taken = resident + dense;
        Shares::of(options, memory.available_bytes, left, taken, conversations)
    };
    let now = shares(of_all(conversation));
    let placed = runner::refuse_hopeless_budget(dense, &now).and_then(|()| {
        runner::place_experts(model, &now, of_all(conversation), options.expert_slots)
    });
    let all = sum(ExpertSource::ram_bytes);
    let fits = placed.is_ok();
    let kept = match placed {
        Ok(store) => store.budget_bytes().min(all),
        Err(error) => {
            errors.push(error);
            now.for_experts().min(all)
        }
    };
    if fits && kept < all {
        findings.push(Finding::note(format!(
            "{} of {} of routed experts fit in memory; the others are read when needed",
            human_bytes(kept),
            human_bytes(all)
        )));
    }
    let fitting_ctx = longest(ctx, |ctx| {
        let conversations = of_all(runner::conversation_bytes(&layouts, ctx));
        runner::refuse_hopeless_budget(dense, &now).is_ok()
            && shares(conversations).for_experts() >= floor
    });
    let history = options.state_dir.as_deref().and_then(|state_dir| {
        let history = runner::history_of(state_dir, dir, model).ok()?;
        history.read().ok().flatten()
    });
    let sizes: Vec<u64> = model.experts.iter().map(ExpertSource::ram_bytes).collect();
    let kept_experts = kept_of(&sizes, &vec![0; sizes.len()], kept).0;
    let by_history = history.map(|counts| {
        let (_, served, uses) = kept_of(&sizes, &counts, kept);
        json!({"uses": uses, "served": served})
    });
    // Bytes of the experts of one token, if all are taken alike.
    let of_token = |size: fn(&ExpertSource) -> u64| {
        (u128::from(sum(size)) * model.top_k as u128)
            .checked_div(model.n_experts as u128)
            .unwrap_or(0) as u64
    };
    json!({
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "cgroup_limit_bytes": cpu::cgroup_memory().map(|(limit, _)| limit),
        "budget_bytes": options.ram_bytes,
        "process_bytes": resident,
        "ctx": ctx,
        "slots": options.slots,
        "dense_bytes": dense,
        "conversation_bytes": conversation,
        "expert_floor_bytes": floor,
        "needed_bytes": dense.saturating_add(of_all(conversation)).saturating_add(floor),
        "fits": fits,
        "fitting_ctx": fitting_ctx,
        "experts": model.experts.len(),
        "experts_kept": kept_experts,
        "experts_bytes": all,
        "experts_kept_bytes": kept,
        "history": by_history,
        "expert_read_bytes_per_token": largest(ExpertSource::disk_bytes).unwrap_or(0)
            * (model.top_k * model.sparse_layers.len()) as u64,
        "token": {
            "dense_bytes": survey.dense_bytes_per_token(model),
            "expert_bytes": of_token(ExpertSource::ram_bytes),
            "expert_disk_bytes": of_token(ExpertSource::disk_bytes),
        },
    })
}

/// The longest context up to `most` that `fits`, of those that are worth asking for; shorter ones fit
/// where longer ones do.
fn longest(most: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (LEAST_CTX.min(most), most);
    if !fits(low) {
        return None;
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    Some(low)
}

/// How many experts of these `sizes` `budget` bytes hold, those with the highest `counts` first, and
/// how many of all uses that were counted were of them.
fn kept_of(sizes: &[u64], counts: &[u64], budget: u64) -> (usize, u64, u64) {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&index| Reverse(counts[index]));
    let (mut kept, mut bytes, mut served) = (0, 0u64, 0u64);
    for index in order {
        bytes = bytes.saturating_add(sizes[index]);
        if bytes > budget {
            break;
        }
        kept += 1;
        served = served.saturating_add(counts[index]);
    }
    (kept, served, counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_experts_are_kept_as_far_as_they_fit() {
        assert_eq!(kept_of(&[10, 10, 10, 10], &[0; 4], 25), (2, 0, 0));
        assert_eq!(kept_of(&[10, 10, 10, 10], &[1, 50, 9, 40], 20), (2, 90, 100));
        assert_eq!(kept_of(&[10, 30, 10], &[1, 2, 3], 25), (1, 3, 6), "the second does not fit");
        assert_eq!(kept_of(&[10, 10], &[u64::MAX, 1], 20), (2, u64::MAX, u64::MAX));
        assert_eq!(kept_of(&[], &[], 20), (0, 0, 0));
    }

    #[test]
    fn the_longest_context_that_fits_is_found() {
        for fitting in [16, 17, 1000, 4095, 4096] {
            assert_eq!(longest(4096, |ctx| ctx <= fitting), Some(fitting));
        }
        assert_eq!(longest(4096, |_| false), None);
        assert_eq!(longest(8, |_| true), Some(8));
    }
}
