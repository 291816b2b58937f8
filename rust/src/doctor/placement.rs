//! What an engine would place where, found before it loads.

use std::cmp::Reverse;
use std::path::Path;

use serde_json::{Value, json};

use super::{Finding, Severity};
use crate::cpu::{self, Memory, cgroup};
use crate::error::{Error, human_bytes};
use crate::experts::ExpertSource;
use crate::gpu::DeviceKind;
use crate::model::{Model, Survey};
use crate::runner::budget::{self, Budget, Reserves, longest};
use crate::runner::{self, DEFAULT_CTX, RunnerOptions};

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
    let threads = options.threads.unwrap_or_else(cpu::n_threads);
    let sum = |size: fn(&ExpertSource) -> u64| model.experts.iter().map(size).sum::<u64>();
    let largest = |size: fn(&ExpertSource) -> u64| model.experts.iter().map(size).max();
    let floor = budget::floor_bytes(model);
    let process = cpu::anonymous_bytes();
    let budget = Budget::of_process(options, process);
    let reserves = Reserves::of(model, ctx, options.slots, threads, budget);
    let refused =
        |ctx| budget::refuse_hopeless(model, dense, process, options, (ctx, threads), budget);
    let all = sum(ExpertSource::ram_bytes);
    let sizes: Vec<u64> = model.experts.iter().map(ExpertSource::ram_bytes).collect();
    let same = vec![0; sizes.len()];
    let device_experts = kept_of(&sizes, &same, device_bytes(options, errors, findings)).0;
    let on_device: u64 = sizes[..device_experts].iter().sum();
    let beside = process.saturating_add(dense).saturating_add(reserves.bytes());
    let most = budget.most.saturating_sub(beside);
    let kept = most.min(runner::slots_bytes(model, options.expert_slots).max(floor)).min(all);
    // What is on the device is not in RAM as well.
    let kept = kept.min((all - on_device).max(floor.min(all)));
    let refusal = refused(ctx).err();
    let fits = refusal.is_none();
    errors.extend(refusal);
    if fits && kept + on_device < all {
        let device = if on_device > 0 { " and on the device" } else { "" };
        findings.push(Finding::note(format!(
            "{} of {} of routed experts fit in memory{device}; the others are read when needed",
            human_bytes(kept + on_device),
            human_bytes(all)
        )));
    }
    let fitting_ctx = longest(ctx, |ctx| refused(ctx).is_ok());
    let history = options.state_dir.as_deref().and_then(|state_dir| {
        let history = runner::history_of(state_dir, dir, model).ok()?;
        history.read().ok().flatten()
    });
    let kept_experts = kept_of(&sizes[device_experts..], &same[device_experts..], kept).0;
    let by_history = history.map(|counts| {
        let (_, served, uses) = kept_of(&sizes, &counts, kept + on_device);
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
        "cgroup_limit_bytes": cgroup::groups().iter().map(|group| group.limit_bytes).min(),
        "budget_bytes": options.ram_bytes,
        "process_bytes": process,
        "ctx": ctx,
        "slots": options.slots,
        "dense_bytes": dense,
        "conversation_bytes": reserves.conversations / options.slots.max(1) as u64,
        "working_bytes": reserves.working,
        "expert_floor_bytes": floor,
        "needed_bytes": dense.saturating_add(reserves.bytes()).saturating_add(floor),
        "fits": fits,
        "fitting_ctx": fitting_ctx,
        "experts": model.experts.len(),
        "experts_kept": kept_experts,
        "experts_bytes": all,
        "experts_kept_bytes": kept,
        "device": options.device.map(DeviceKind::name),
        "device_experts": device_experts,
        "device_experts_bytes": on_device,
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

/// Bytes that a device has for experts; what an engine of these options would refuse or ignore is noted.
fn device_bytes(
    options: &RunnerOptions,
    errors: &mut Vec<Error>,
    findings: &mut Vec<Finding>,
) -> u64 {
    match (options.device, options.vram_bytes) {
        (Some(kind), asked) => {
            kind.budget_bytes(asked).map_err(|error| errors.push(error)).unwrap_or(0)
        }
        (None, Some(_)) => {
            findings.push(Finding {
                severity: Severity::Warning,
                text: "no device is in use, so --vram changes nothing".into(),
                hint: Some("set COLIBRI_DEVICE, or leave --vram out".into()),
            });
            0
        }
        (None, None) => 0,
    }
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
}
