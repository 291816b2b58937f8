//! Conversations from one run to the next: which model's they are, and where they are kept.

use std::path::Path;
use std::time::UNIX_EPOCH;

use super::Runner;
use crate::error::{Error, Result};
use crate::kernels::KV_BLOCK;
use crate::kv::file::Format;
use crate::kv::saver::Saver;
use crate::model::Model;
use crate::store::{Catalog, read_capped};

/// Longest configuration that is looked at.
const MAX_CONFIG_BYTES: u64 = 256 << 20;

impl Runner {
    /// Takes up the conversations that are in `state_dir` and keeps them there from now on, if that
    /// can be done; else a notice says why not. `progress` gets bytes read and in all of a file.
    ///
    /// # Errors
    /// [`Error::Io`] if a file of the model is not what it was when it was loaded.
    pub fn keep_conversations(
        &mut self,
        state_dir: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let format = Format::new(identity(&self.model)?, self.model.layouts());
        let (slots, notices) = (&mut self.slots, &mut self.notices);
        match Saver::start(state_dir, format, slots, self.ctx, notices, progress) {
            Ok(saver) => self.saver = Some(saver),
            Err(reason) => self.notices.push(format!("conversations are not saved: {reason}")),
        }
        if self.model.decoder.mtp.is_some() {
            let layer = self.model.decoder.layers.len();
            self.slots.iter_mut().for_each(|slot| slot.find_drafting(layer));
        }
        let lengths = self.slots.iter().map(|slot| slot.tokens().len());
        self.keeper.make_room(&mut self.experts, lengths, 0);
        Ok(())
    }

    /// Waits until all conversations are on the disk; none is saved any more.
    pub fn finish_conversations(&mut self) {
        if let Some(saver) = self.saver.take() {
            saver.finish();
        }
    }
}

/// What decides the bits of keys, values and states but for tokens and the numeric contract: the
/// configuration, the catalogue of tensors, the files they are in, what is kept of a token.
///
/// Weights are too many to be read for this; that they are the same is concluded from the lengths of
/// their files and when these were changed last.
fn identity(model: &Model) -> Result<[u8; 32]> {
    let catalog: &Catalog = &model.catalog;
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        // Lengths keep ("ab", "c") apart from ("a", "bc").
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    add(&read_capped(&catalog.dir().join("config.json"), MAX_CONFIG_BYTES)?);
    for (path, bytes, header) in catalog.shards() {
        add(path.file_name().unwrap_or_default().as_encoded_bytes());
        add(&bytes.to_le_bytes());
        add(header.as_bytes());
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        let changed = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        add(&changed.map_or(0, |since| since.as_nanos()).to_le_bytes());
    }
    add(format!("{KV_BLOCK} {:?}", model.layouts()).as_bytes());
    Ok(*hasher.finalize().as_bytes())
}
