//! Experts that share tensors.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::error::Result;
use crate::store::{Catalog, FusedRows, MatrixSource, StackedRows};

/// What the tensors are called that all experts of a layer share: gate with up, and down.
const PARTS: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The experts of one layer.
pub struct Shared {
    /// How many there are.
    pub n: usize,
    /// Rows of gate and of up.
    width: usize,
    /// Their inputs.
    hidden: usize,
    layout: Layout,
}

/// Where the rows of one expert's matrices lie.
enum Layout {
    /// In one piece each: `gate_up_proj` `[n, 2 * width, hidden]`, gate first, and `down_proj`
    /// `[n, hidden, width]`.
    Stacked,
    /// Those of gate and up by turns, as columns or in MXFP4: as in `gpt_oss`.
    ByTurns,
}

/// All of them by what the names of their tensors begin with.
///
/// # Errors
/// A configuration that lacks the sizes of experts whose tensors do not tell them.
pub fn find(catalog: &Catalog, config: &Config) -> Result<BTreeMap<String, Shared>> {
    // Only the configuration tells one order from the other.
    let by_turns = config.model_type()? == "gpt_oss";
    let mut found = BTreeMap::new();
    for name in catalog.tensors().keys() {
        let Some((prefix, part)) = name.rsplit_once('.') else { continue };
        if !prefix.ends_with(".experts") || !is_weight(part) {
            continue;
        }
        let shared = if by_turns { Some(of_config(config)?) } else { of_shapes(catalog, prefix) };
        found.extend(shared.map(|shared| (prefix.to_owned(), shared)));
    }
    Ok(found)
}

/// Whether `part`, the end of a tensor's name, is that of weights that experts share: floats, or MXFP4.
pub fn is_weight(part: &str) -> bool {
    let ends = ["", "_blocks", "_scales"];
    let is_end = |shared: &str| part.strip_prefix(shared).is_some_and(|end| ends.contains(&end));
    PARTS.into_iter().any(is_end)
}

fn of_config(config: &Config) -> Result<Shared> {
    let missing = || config.refuse("num_local_experts is missing");
    Ok(Shared {
        n: config.n_experts(1 << 16)?.ok_or_else(missing)?,
        width: config.count("intermediate_size", 1 << 20)?,
        hidden: config.count("hidden_size", 1 << 20)?,
        layout: Layout::ByTurns,
    })
}

/// Transposed ones have no shapes of this kind.
fn of_shapes(catalog: &Catalog, prefix: &str) -> Option<Shared> {
    let shape = |part: &str| match catalog.get(&format!("{prefix}.{part}"))?.shape[..] {
        [n, n_out, n_in] => Some((n, n_out, n_in)),
        _ => None,
    };
    let [(n, rows, inputs), (n_down, hidden, width)] = [shape(PARTS[0])?, shape(PARTS[1])?];
    let fits = n == n_down && inputs == hidden && width.checked_mul(2) == Some(rows);
    // Without elements, a file could hold any number of them.
    let is_empty = width == 0 || hidden == 0;
    (fits && !is_empty).then_some(Shared { n, width, hidden, layout: Layout::Stacked })
}

impl Shared {
    /// Gate, up and down of one expert.
    ///
    /// # Errors
    /// A tensor that is missing, or of another shape or type.
    pub fn sources(
        &self,
        catalog: &Catalog,
        prefix: &str,
        expert: usize,
    ) -> Result<[MatrixSource; 3]> {
        let &Self { n: n_experts, width, hidden, ref layout } = self;
        // The `part`-th of `parts` matrices of an expert in a tensor.
        let find = |name: &str, parts, part, n_out, n_in| {
            let name = format!("{prefix}.{name}");
            match layout {
                Layout::Stacked => {
                    let rows = StackedRows { n_experts, expert, parts, part };
                    MatrixSource::of_rows(catalog, &name, rows, n_out, n_in)
                }
                Layout::ByTurns => {
                    let rows = FusedRows { n_experts, expert, first: part, step: parts };
                    MatrixSource::of_fused(catalog, &name, rows, n_out, n_in)
                }
            }
        };
        let [gate_up, down] = PARTS;
        Ok([
            find(gate_up, 2, 0, width, hidden)?,
            find(gate_up, 2, 1, width, hidden)?,
            find(down, 1, 0, hidden, width)?,
        ])
    }
}
