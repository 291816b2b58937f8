//! Recurrent attention as configurations describe it.

use crate::config::Config;
use crate::error::Result;
use crate::kernels::math;
use crate::model::linear_attention::LinearHeads;

/// Most heads of a layer accepted, and most elements of a head's key or value.
const MAX_HEADS: usize = 1 << 12;
/// Most elements of a layer's state accepted, 1 GiB.
const MAX_STATE: usize = 1 << 28;

/// Heads and their dimensions, under the given keys: those of keys, then those of values.
pub fn read_heads(config: &Config, n: [&str; 2], dims: [&str; 2]) -> Result<LinearHeads> {
    let [k_heads, v_heads] = [config.count(n[0], MAX_HEADS)?, config.count(n[1], MAX_HEADS)?];
    let [k_dim, v_dim] = [config.count(dims[0], MAX_HEADS)?, config.count(dims[1], MAX_HEADS)?];
    if !v_heads.is_multiple_of(k_heads) {
        return Err(config.refuse(format!("{v_heads} value heads over {k_heads} key heads")));
    }
    if v_heads * k_dim * v_dim > MAX_STATE {
        return Err(config.refuse(format!(
            "{v_heads} heads with states of {k_dim} x {v_dim} are larger than any known"
        )));
    }
    Ok(LinearHeads { k_heads, v_heads, k_dim, v_dim })
}

/// Inputs that a convolution weighs, its own included.
pub fn conv_taps(config: &Config, key: &str) -> Result<usize> {
    config.count(key, 64)
}

/// -e^x of each element.
pub fn negative_exp(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| -math::exp(x)).collect()
}
