//! `RecordReader`, `RequestReader` and `format_submit`: the wire as Python code sees it.

use crate::error::Error;
use crate::mux::frame::{
    self, DriveRecord, Incoming, Record, StatRecord, Submit, SubmitOptions, TurnRecord,
    write_submit,
};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::collections::HashMap;

/// Incremental parser of the engine's output (engine -> server); total on every byte string.
#[pyclass(module = "colibri._core")]
pub struct RecordReader(frame::RecordReader);

#[pymethods]
impl RecordReader {
    #[new]
    fn new() -> Self {
        Self(frame::RecordReader::new())
    }

    /// Parse more bytes; return the records completed by them as `(kind, fields)`.
    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
    ) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
        self.0.feed(data);
        std::iter::from_fn(|| self.0.next()).map(|record| to_python(py, record)).collect()
    }

    /// Bytes of an incomplete record held back.
    #[getter]
    fn buffered(&self) -> usize {
        self.0.buffered()
    }
}

/// A complete SUBMIT frame; raises `ValueError` for values the wire cannot carry.
///
/// The value of the option `grammar` is the text itself.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the fields of a SUBMIT header")]
#[expect(clippy::needless_pass_by_value, reason = "arguments arrive by value from Python")]
#[pyo3(signature = (id, slot, payload, max_tokens, temperature, top_p, options))]
pub fn format_submit<'py>(
    py: Python<'py>,
    id: &Bound<'py, PyAny>,
    slot: &Bound<'py, PyAny>,
    payload: &[u8],
    max_tokens: &Bound<'py, PyAny>,
    temperature: f64,
    top_p: f64,
    options: HashMap<String, String>,
) -> PyResult<Bound<'py, PyBytes>> {
    let pairs = options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let submit = Submit {
        id: whole(id, "id")?,
        slot: whole(slot, "slot")?,
        max_tokens: whole(max_tokens, "max_tokens")?,
        temperature,
        top_p,
        options: SubmitOptions::from_pairs(pairs).map_err(value_error)?,
        payload: payload.to_vec(),
    };
    let mut frame = Vec::new();
    write_submit(&mut frame, &submit).map_err(value_error)?;
    Ok(PyBytes::new(py, &frame))
}

/// An integer argument; one that does not fit is a `ValueError` like any other bad value.
fn whole<'py, T: FromPyObjectOwned<'py, Error = PyErr>>(
    value: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<T> {
    value.extract::<T>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            PyValueError::new_err(format!("{name} is out of range"))
        } else {
            error
        }
    })
}

#[expect(clippy::needless_pass_by_value, reason = "given to map_err")]
fn value_error(error: Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn stat_fields(fields: &Bound<'_, PyDict>, stat: &StatRecord) -> PyResult<()> {
    fields.set_item("emitted", stat.emitted)?;
    fields.set_item("tok_s", stat.tok_s)?;
    fields.set_item("hit_pct", stat.hit_pct)?;
    fields.set_item("rss_gb", stat.rss_gb)
}

fn turn_fields(fields: &Bound<'_, PyDict>, turn: &TurnRecord) -> PyResult<()> {
    stat_fields(fields, &turn.stat)?;
    fields.set_item("prompt_tokens", turn.prompt_tokens)?;
    fields.set_item("length_limited", turn.length_limited)
}

/// The kind and the fields of a record, named as in `_core.pyi`.
fn to_python(py: Python<'_>, record: Record) -> PyResult<(&'static str, Bound<'_, PyDict>)> {
    let fields = PyDict::new(py);
    let kind = match record {
        Record::Ready => "READY",
        Record::Stat(stat) => {
            stat_fields(&fields, &stat)?;
            "STAT"
        }
        Record::TurnStat(turn) => {
            turn_fields(&fields, &turn)?;
            "STAT"
        }
        Record::HwInfo(hw) => {
            fields.set_item("cores", hw.cores)?;
            fields.set_item("ram_total_gb", hw.ram_total_gb)?;
            fields.set_item("ram_avail_gb", hw.ram_avail_gb)?;
            fields.set_item("ngpu", hw.ngpu)?;
            fields.set_item("vram_total_gb", hw.vram_total_gb)?;
            fields.set_item("cpu_name", hw.cpu_name)?;
            fields.set_item("gpu_name", hw.gpu_name)?;
            "HWINFO"
        }
        Record::Gpus(gpus) => {
            let list = PyList::empty(py);
            for gpu in gpus {
                let entry = PyDict::new(py);
                entry.set_item("used_gb", gpu.used_gb)?;
                entry.set_item("total_gb", gpu.total_gb)?;
                entry.set_item("experts", gpu.experts)?;
                list.append(entry)?;
            }
            fields.set_item("gpus", list)?;
            "GPUS"
        }
        Record::Tiers(tiers) => {
            fields.set_item("vram", tiers.vram)?;
            fields.set_item("ram", tiers.ram)?;
            fields.set_item("disk", tiers.disk)?;
            fields.set_item("vram_gb", tiers.vram_gb)?;
            fields.set_item("ram_gb", tiers.ram_gb)?;
            "TIERS"
        }
        Record::Emap { rows, cols, map } => {
            fields.set_item("rows", rows)?;
            fields.set_item("cols", cols)?;
            fields.set_item("map", PyBytes::new(py, &map))?;
            "EMAP"
        }
        Record::Hits { rows, cols, hits } => {
            fields.set_item("rows", rows)?;
            fields.set_item("cols", cols)?;
            fields.set_item("hits", PyBytes::new(py, &hits))?;
            "HITS"
        }
        Record::Caps(caps) => {
            for (key, value) in caps {
                fields.set_item(key, value)?;
            }
            "CAPS"
        }
        Record::Accept { id, prompt_tokens } => {
            fields.set_item("id", id)?;
            fields.set_item("prompt_tokens", prompt_tokens)?;
            "ACCEPT"
        }
        Record::Prefill { id, done, total } => {
            fields.set_item("id", id)?;
            fields.set_item("done", done)?;
            fields.set_item("total", total)?;
            "PREFILL"
        }
        Record::Data { id, data } => {
            fields.set_item("id", id)?;
            fields.set_item("data", PyBytes::new(py, &data))?;
            "DATA"
        }
        Record::Topk { id, tokens } => {
            fields.set_item("id", id)?;
            let tokens: Vec<(f64, Bound<'_, PyBytes>)> =
                tokens.iter().map(|t| (t.logprob, PyBytes::new(py, &t.bytes))).collect();
            fields.set_item("tokens", tokens)?;
            "TOPK"
        }
        Record::Repin { layer, expert, old_tier, gpu } => {
            fields.set_item("layer", layer)?;
            fields.set_item("expert", expert)?;
            fields.set_item("old_tier", old_tier)?;
            fields.set_item("gpu", gpu)?;
            "REPIN"
        }
        Record::Perf { id, times } => {
            fields.set_item("id", id)?;
            fields.set_item("wall_s", times.wall_s)?;
            fields.set_item("expert_disk_s", times.expert_disk_s)?;
            fields.set_item("expert_wait_s", times.expert_wait_s)?;
            fields.set_item("expert_matmul_s", times.expert_matmul_s)?;
            fields.set_item("attention_s", times.attention_s)?;
            fields.set_item("kv_decompress_s", times.kv_decompress_s)?;
            fields.set_item("head_s", times.head_s)?;
            let more = times.more.as_ref();
            fields.set_item("ffn_s", more.map(|more| more.ffn_s))?;
            fields.set_item("reading_s", more.map(|more| more.reading_s))?;
            fields.set_item("uses_ahead", more.map(|more| more.uses_ahead))?;
            fields.set_item("uses_cached", more.map(|more| more.uses_cached))?;
            fields.set_item("uses_missed", more.map(|more| more.uses_missed))?;
            fields.set_item("bytes_read", more.map(|more| more.bytes_read))?;
            fields.set_item("uses_vram", more.and_then(|more| more.uses_vram))?;
            fields.set_item("experts_ram", more.and_then(|more| more.experts_ram))?;
            let (drafted, right) = more.and_then(|more| more.drafts).unzip();
            fields.set_item("drafted", drafted)?;
            fields.set_item("drafted_right", right)?;
            let drives = more.map(|more| &more.drives[..]).unwrap_or_default();
            let drive = |drive: &DriveRecord| {
                let told = PyDict::new(py);
                told.set_item("mirror", drive.number)?;
                told.set_item("bytes", drive.bytes)?;
                told.set_item("bytes_per_second", (drive.rate > 0).then_some(drive.rate))?;
                told.set_item("is_dropped", drive.is_dropped)?;
                Ok(told)
            };
            let drives: Vec<_> = drives.iter().map(drive).collect::<PyResult<_>>()?;
            fields.set_item("drives", drives)?;
            "PERF"
        }
        Record::Prof(prof) => {
            fields.set_item("wall_s", prof.wall_s)?;
            fields.set_item("prompt_tokens", prof.prompt_tokens)?;
            fields.set_item("emitted", prof.emitted)?;
            fields.set_item("expert_disk_s", prof.expert_disk_s)?;
            fields.set_item("expert_wait_s", prof.expert_wait_s)?;
            fields.set_item("expert_matmul_s", prof.expert_matmul_s)?;
            fields.set_item("attention_s", prof.attention_s)?;
            fields.set_item("head_s", prof.head_s)?;
            fields.set_item("forwards", prof.forwards)?;
            "PROF"
        }
        Record::Entropy(bits) => {
            fields.set_item("bits", bits)?;
            "ENTROPY"
        }
        Record::Done { id, turn } => {
            fields.set_item("id", id)?;
            turn_fields(&fields, &turn)?;
            "DONE"
        }
        Record::Error { id, code, detail } => {
            fields.set_item("id", id)?;
            fields.set_item("code", code)?;
            fields.set_item("detail", detail)?;
            "ERROR"
        }
        Record::Unknown(line) => {
            fields.set_item("line", PyBytes::new(py, &line))?;
            "UNKNOWN"
        }
        Record::Malformed { line, reason } => {
            fields.set_item("line", PyBytes::new(py, &line))?;
            fields.set_item("reason", reason)?;
            "MALFORMED"
        }
    };
    Ok((kind, fields))
}

/// Incremental parser of the engine's input (server -> engine); total on every byte string.
#[pyclass(module = "colibri._core")]
pub struct RequestReader(frame::RequestReader);

#[pymethods]
impl RequestReader {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "arguments arrive by value from Python")]
    #[pyo3(signature = (options, slots))]
    fn new(options: Option<Vec<String>>, slots: usize) -> Self {
        let accepted: Vec<&str> = match &options {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => frame::OPTION_NAMES.to_vec(),
        };
        Self(frame::RequestReader::new(&accepted, slots))
    }

    /// Parse more bytes; return the requests completed by them as `(kind, fields)`.
    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
    ) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
        self.0.feed(data);
        self.take(py)
    }

    /// Say that no byte follows; return what that completes.
    fn finish<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
        self.0.finish();
        self.take(py)
    }
}

impl RequestReader {
    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
        std::iter::from_fn(|| self.0.next()).map(|incoming| request_fields(py, incoming)).collect()
    }
}

/// The kind and the fields of a request, named as in `_core.pyi`.
fn request_fields(
    py: Python<'_>,
    incoming: Incoming,
) -> PyResult<(&'static str, Bound<'_, PyDict>)> {
    let fields = PyDict::new(py);
    let refusal = |id: u64, detail: String| -> PyResult<()> {
        fields.set_item("id", id)?;
        fields.set_item("detail", detail)
    };
    let kind = match incoming {
        Incoming::Submit(submit) => {
            fields.set_item("id", submit.id)?;
            fields.set_item("slot", submit.slot)?;
            fields.set_item("max_tokens", submit.max_tokens)?;
            fields.set_item("temperature", submit.temperature)?;
            fields.set_item("top_p", submit.top_p)?;
            fields.set_item("topk", submit.options.topk)?;
            let biased = submit.options.bias.iter().map(|(token, _)| *token);
            let named: Vec<u32> = submit.options.stop_ids.iter().copied().chain(biased).collect();
            fields.set_item("token_ids", named)?;
            fields.set_item("payload", PyBytes::new(py, &submit.payload))?;
            "SUBMIT"
        }
        Incoming::Stop(id) => {
            fields.set_item("id", id)?;
            "STOP"
        }
        Incoming::Cancel(id) => {
            fields.set_item("id", id)?;
            "CANCEL"
        }
        Incoming::Refused { id, detail } => {
            refusal(id, detail)?;
            "REFUSED"
        }
        Incoming::Lost { id, detail } => {
            refusal(id, detail)?;
            "LOST"
        }
    };
    Ok((kind, fields))
}
