//! A device that is none: a part of this machine's memory, with threads of its own.
//!
//! It does what a real one does, experts copied into its memory and batches computed beside the
//! caller, so that whatever is built on [`Device`] can be tested anywhere.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use super::{Device, Fault, Work};
use crate::cpu::Isa;
use crate::expert::Expert;
use crate::kernels::Kernels;

/// Host memory as a device.
pub struct HostDevice {
    budget_bytes: u64,
    used_bytes: u64,
    held: BTreeMap<usize, Arc<Expert>>,
    /// Keys of experts that are being copied, in the order of their requests.
    uploading: VecDeque<usize>,
    copier: Worker<Arc<Expert>, Expert>,
    computer: Worker<Batch, Vec<Vec<f32>>>,
}

struct Batch {
    x: Vec<f32>,
    work: Vec<(Arc<Expert>, Vec<u32>)>,
}

impl HostDevice {
    /// A device of `budget_bytes` that computes with the kernels of `isa`.
    ///
    /// # Panics
    /// If the CPU does not run `isa`, or the system refuses to start a thread.
    pub fn new(budget_bytes: u64, isa: Isa) -> Self {
        let kernels = Kernels::new(isa);
        Self {
            budget_bytes,
            used_bytes: 0,
            held: BTreeMap::new(),
            uploading: VecDeque::new(),
            copier: Worker::new("device-copies", |expert: Arc<Expert>| Expert::clone(&expert)),
            computer: Worker::new("device-computes", move |batch: Batch| {
                let output = |(expert, rows): &(Arc<Expert>, Vec<u32>)| {
                    expert.forward(&kernels, &batch.x, rows.iter().map(|&row| row as usize))
                };
                batch.work.iter().map(output).collect()
            }),
        }
    }
}

impl Device for HostDevice {
    fn name(&self) -> &'static str {
        "host memory"
    }

    fn total_bytes(&self) -> u64 {
        self.budget_bytes
    }

    fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn bytes_here(&self) -> u64 {
        self.used_bytes
    }

    fn expert_bytes(&self, expert: &Expert) -> Option<u64> {
        Some(expert.bytes())
    }

    fn upload(&mut self, key: usize, expert: Arc<Expert>) -> Result<(), Fault> {
        assert!(!self.held.contains_key(&key) && !self.uploading.contains(&key), "{key} is there");
        let used = self.used_bytes + expert.bytes();
        if used > self.budget_bytes {
            return Err(Fault::OutOfMemory);
        }
        self.copier.begin(expert)?;
        self.used_bytes = used;
        self.uploading.push_back(key);
        Ok(())
    }

    fn uploaded(&mut self, wait: bool) -> Option<(usize, Result<(), Fault>)> {
        let key = *self.uploading.front()?;
        let done = self.copier.next(wait).transpose()?;
        self.uploading.pop_front();
        Some((key, done.map(|copy| drop(self.held.insert(key, Arc::new(copy))))))
    }

    fn release(&mut self, key: usize) {
        let expert = self.held.remove(&key).expect("only what is there is released");
        self.used_bytes -= expert.bytes();
    }

    fn submit(&mut self, x: &[f32], work: &[Work]) -> Result<(), Fault> {
        let held = |work: &Work| (Arc::clone(&self.held[&work.key]), work.rows.clone());
        self.computer.begin(Batch { x: x.to_vec(), work: work.iter().map(held).collect() })
    }

    fn collect(&mut self) -> Result<Vec<Vec<f32>>, Fault> {
        Ok(self.computer.next(true)?.expect("it was waited for"))
    }
}

/// A thread that does one thing after the other. It ends when this is dropped.
struct Worker<T, R> {
    tasks: Sender<T>,
    results: Receiver<R>,
}

impl<T: Send + 'static, R: Send + 'static> Worker<T, R> {
    fn new(name: &str, work: impl Fn(T) -> R + Send + 'static) -> Self {
        let (tasks, given) = channel();
        let (done, results) = channel();
        thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                for task in given {
                    if done.send(work(task)).is_err() {
                        return;
                    }
                }
            })
            .expect("the system starts a thread");
        Self { tasks, results }
    }

    fn begin(&self, task: T) -> Result<(), Fault> {
        self.tasks.send(task).map_err(|_| ended())
    }

    /// The next result, which is waited for if asked to.
    fn next(&self, wait: bool) -> Result<Option<R>, Fault> {
        if wait {
            return self.results.recv().map(Some).map_err(|_| ended());
        }
        match self.results.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ended()),
        }
    }
}

/// A thread of the device panicked; the panic hook has printed why.
fn ended() -> Fault {
    Fault::Lost("one of its threads has ended".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::expert::Activation;
    use crate::matrix::{Bits, Matrix};

    const HIDDEN: usize = 24;
    const WIDTH: usize = 40;

    fn matrix(n_out: usize, n_in: usize, seed: usize) -> Matrix {
        let scales: Vec<u8> = (0..n_out * n_in / 8)
            .flat_map(|i| (0.01 + ((i + seed) % 5) as f32 * 0.003).to_le_bytes())
            .collect();
        Matrix::from_int(Bits::Four, n_out, n_in, 8, Dtype::F32, &scales, |row, k| {
            ((row * 5 + k * 3 + seed) % 16) as i8 - 8
        })
    }

    fn expert(seed: usize) -> Arc<Expert> {
        Arc::new(Expert {
            gate: matrix(WIDTH, HIDDEN, seed),
            up: matrix(WIDTH, HIDDEN, seed + 1),
            down: matrix(HIDDEN, WIDTH, seed + 2),
            biases: None,
            activation: Activation::SwiGlu,
        })
    }

    fn work(key: usize, rows: &[u32]) -> Work {
        Work { key, rows: rows.to_vec() }
    }

    #[test]
    fn what_it_computes_has_the_bits_of_the_scalar_kernels() {
        let x: Vec<f32> = (0..3 * HIDDEN).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut device = HostDevice::new(u64::MAX, Isa::detect());
        for key in [7, 2] {
            device.upload(key, expert(key)).expect("room");
            assert_eq!(device.uploaded(true), Some((key, Ok(()))));
        }
        device.submit(&x, &[work(7, &[0, 2]), work(2, &[1])]).expect("a device");
        let scalar = Kernels::new(Isa::Scalar);
        let expected = vec![
            expert(7).forward(&scalar, &x, [0, 2].into_iter()),
            expert(2).forward(&scalar, &x, [1].into_iter()),
        ];
        assert_eq!(expected[0].len(), 2 * HIDDEN);
        let bits = |outputs: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
            outputs.iter().map(|y| y.iter().map(|v| v.to_bits()).collect()).collect()
        };
        assert_eq!(bits(device.collect().expect("a device")), bits(expected));
    }

    #[test]
    fn it_takes_what_fits_and_counts_it_from_the_beginning_of_its_upload() {
        let bytes = expert(0).bytes();
        let mut device = HostDevice::new(2 * bytes + 1, Isa::Scalar);
        assert_eq!(device.uploaded(true), None, "nothing was begun");
        for key in 0..2 {
            device.upload(key, expert(key)).expect("room");
        }
        assert_eq!(device.used_bytes(), 2 * bytes);
        assert_eq!(device.upload(2, expert(2)), Err(Fault::OutOfMemory));
        for key in 0..2 {
            assert_eq!(device.uploaded(true), Some((key, Ok(()))));
        }
        assert_eq!(device.bytes_here(), device.used_bytes(), "it has no other memory");
        device.release(0);
        assert_eq!((device.used_bytes(), device.bytes_here()), (bytes, bytes));
        device.upload(2, expert(2)).expect("there is room again");
    }

    #[test]
    fn a_batch_that_cannot_be_computed_is_a_lost_device() {
        let mut device = HostDevice::new(u64::MAX, Isa::Scalar);
        device.upload(0, expert(0)).expect("room");
        device.uploaded(true).expect("it was begun").1.expect("copied");
        // There is no such row, so the thread panics.
        device.submit(&[0.0; HIDDEN], &[work(0, &[1])]).expect("the thread lives");
        assert_eq!(device.collect(), Err(ended()));
        assert_eq!(device.submit(&[0.0; HIDDEN], &[work(0, &[0])]), Err(ended()));
    }
}
