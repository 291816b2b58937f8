//! Experts that share tensors in which the rows of each matrix lie in one piece.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::store::{Catalog, MatrixSource, StackedRows};

/// The experts of one layer.
pub struct Stacked {
    /// How many there are.
    pub n: usize,
    /// Rows of gate and of up.
    width: usize,
    /// Their inputs.
    hidden: usize,
}

/// All of them by what the names of their tensors begin with: `gate_up_proj` `[n, 2 * width, hidden]`
/// and `down_proj` `[n, hidden, width]`. Transposed ones have no shapes of this kind.
pub fn find(catalog: &Catalog) -> BTreeMap<String, Stacked> {
    let of = |prefix: &str| {
        let shape = |part: &str| match catalog.get(&format!("{prefix}.{part}"))?.shape[..] {
            [n, n_out, n_in] => Some((n, n_out, n_in)),
            _ => None,
        };
        let ((n, rows, inputs), (n_down, hidden, width)) =
            (shape("gate_up_proj")?, shape("down_proj")?);
        let fits = n == n_down && inputs == hidden && width.checked_mul(2) == Some(rows);
        fits.then_some(Stacked { n, width, hidden })
    };
    let blocks = catalog.tensors().keys().filter_map(|name| name.strip_suffix(".gate_up_proj"));
    blocks
        .filter(|prefix| prefix.ends_with(".experts"))
        .filter_map(|prefix| Some((prefix.to_owned(), of(prefix)?)))
        .collect()
}

impl Stacked {
    /// Gate, up and down of one expert.
    pub fn sources(
        &self,
        catalog: &Catalog,
        prefix: &str,
        expert: usize,
    ) -> Result<[MatrixSource; 3]> {
        let find = |name: &str, parts, part, n_out, n_in| {
            let rows = StackedRows { n_experts: self.n, expert, parts, part };
            MatrixSource::of_rows(catalog, &format!("{prefix}.{name}"), rows, n_out, n_in)
        };
        Ok([
            find("gate_up_proj", 2, 0, self.width, self.hidden)?,
            find("gate_up_proj", 2, 1, self.width, self.hidden)?,
            find("down_proj", 1, 0, self.hidden, self.width)?,
        ])
    }
}
