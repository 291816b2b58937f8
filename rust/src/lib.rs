//! colibri: inference for Mixture-of-Experts models whose experts do not fit in memory.
//!
//! Dense weights are resident; routed experts are placed across the tiers disk, RAM and VRAM.
//! Placement decides speed and never the result: see `docs/design/0001-numeric-contract.md`.
//!
//! Modules form layers; a lower one never names a higher one (checked by `tests/architecture`).

pub mod cli;
pub mod config;
pub mod convert;
pub mod cpu;
pub mod doctor;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod expert;
pub mod experts;
pub mod gpu;
pub mod kernels;
pub mod kv;
pub mod legacy;
mod log;
pub mod matrix;
// The fuzz targets count what is allocated and bring their own.
#[cfg(not(fuzzing))]
mod memory;
pub mod model;
pub mod mux;
#[cfg(feature = "python")]
pub mod python;
pub mod runner;
pub mod sample;
pub mod stdio;
pub mod store;
pub mod telemetry;
pub mod template;
pub mod threads;
pub mod tokenizer;

#[cfg(not(fuzzing))]
#[global_allocator]
static ALLOCATOR: memory::HugePages = memory::HugePages;
