//! Which of the records that grew over time an engine sends: `COLIBRI_WIRE`.

use super::SUBMIT_OPTIONS;

/// How much of the wire the other side understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    /// Everything.
    #[default]
    Full,
    /// What the protocol's first specification lists.
    Seed,
    /// What the gateway of the C engine understands; it fails on lines it does not know.
    Upstream,
}

impl Wire {
    /// Submit options that are taken; a server may send them only if CAPS names them.
    pub fn submit_options(self) -> &'static [&'static str] {
        if self.has_caps() { SUBMIT_OPTIONS } else { &[] }
    }

    /// CAPS in the handshake.
    pub fn has_caps(self) -> bool {
        self == Self::Full
    }

    /// ACCEPT for each request that is admitted.
    pub fn has_accept(self) -> bool {
        self != Self::Seed
    }

    /// PREFILL while a prompt is processed.
    pub fn has_prefill(self) -> bool {
        self == Self::Full
    }

    /// TOPK, PERF, ENTROPY, and HITS within turns.
    pub fn has_details(self) -> bool {
        self != Self::Upstream
    }

    /// PROF before DONE.
    pub fn has_prof(self) -> bool {
        self == Self::Upstream
    }
}
