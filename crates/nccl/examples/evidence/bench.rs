//! One rank of the evidence run: communicator, calls, tables.

use std::path::Path;
use std::time::Duration;

use shardweld_ir::ReduceOp;
use shardweld_nccl::{
    Call, CommError, Communicator, Device, ElementType, FileRendezvous, Join, Kind, NcclComm, NcclLibrary,
    NcclTransport, Rendezvous, Search, TcpRendezvous, Transport,
};

use crate::{Outcome, RankArgs, Run};

/// Filler of result buffers, so that bytes nobody wrote are seen.
pub const POISON: u8 = 0xab;

pub struct Bench {
    pub transport: NcclTransport,
    /// `None` only while a broken one is replaced.
    world: Option<NcclComm>,
    pub rank: u32,
    pub n: u32,
    pub limit: Duration,
    failures: u32,
}

impl Bench {
    pub fn start(run: &Run, args: &RankArgs, limit: Duration) -> Outcome<Bench> {
        let join = Join {
            beat: Duration::from_millis(200),
            dead_after: Duration::from_secs(2),
            ..Join::new(args.rank, args.world, &args.token)
        };
        let met: Box<dyn Rendezvous> = match args.meet.split_once(':') {
            Some(("tcp", address)) => Box::new(TcpRendezvous::join(address, join)?),
            Some(("file", folder)) => Box::new(FileRendezvous::join(Path::new(folder), join)?),
            _ => return Err(format!("--meet {}: neither tcp: nor file:", args.meet).into()),
        };
        let library = NcclLibrary::open(&Search::from_environment(run.nccl.clone()))?;
        let device = Device::open((args.rank % run.gpus) as usize)?;
        let mut transport = NcclTransport::connect(library, device, met, limit)?;
        let world = Some(transport.split(&[(0..args.world).collect()])?);
        let bench = Bench { transport, world, rank: args.rank, n: args.world, limit, failures: 0 };
        if bench.rank == 0 && args.job == "report" {
            let (l, d) = (bench.transport.library(), bench.transport.device());
            println!("\n## {} ranks\n\nNCCL {} on {}.", bench.n, l.version(), d.name()?);
        }
        Ok(bench)
    }

    pub fn comm(&mut self) -> Outcome<&mut NcclComm> {
        self.world.as_mut().ok_or_else(|| "no communicator".into())
    }

    /// One call over all ranks on flat buffers; the result, poisoned where nothing was written.
    pub fn call(&mut self, kind: Kind, element: ElementType, send: &[u8]) -> Result<Vec<u8>, CommError> {
        let len = (send.len() / element.size()) as u64;
        let call = Call::new("evidence", kind, element, &[len], self.n)?;
        self.run(&call, send)
    }

    pub fn run(&mut self, call: &Call, send: &[u8]) -> Result<Vec<u8>, CommError> {
        let send = self.transport.upload(send)?;
        let mut recv = self.transport.upload(&vec![POISON; call.recv_bytes()])?;
        let comm = match &mut self.world {
            Some(c) => c,
            // The last one was broken by a refused call; all ranks were refused alike.
            empty => empty.insert(self.transport.split(&[(0..self.n).collect()])?),
        };
        let result = comm.run(call, &send, &mut recv);
        if let Err(e) = result {
            self.world = None;
            return Err(e);
        }
        self.transport.download(&recv)
    }

    pub fn all_reduce(&mut self, op: ReduceOp, element: ElementType, send: &[u8]) -> Outcome<Vec<u8>> {
        Ok(self.call(Kind::AllReduce(op), element, send)?)
    }

    /// Whether all ranks hold the same bytes.
    pub fn same_everywhere(&mut self, bytes: &[u8]) -> Outcome<bool> {
        let digest = blake3::hash(bytes);
        let all = self.transport.exchange("digest", digest.as_bytes()).ok_or("no rendezvous")??;
        Ok(all.windows(2).all(|w| w[0] == w[1]))
    }

    /// Adds up a count over all ranks, so that the report speaks of all of them.
    pub fn total(&mut self, count: u64) -> Outcome<u64> {
        let all = self.transport.exchange("count", &count.to_le_bytes()).ok_or("no rendezvous")??;
        Ok(all.iter().filter_map(|b| Some(u64::from_le_bytes(b.as_slice().try_into().ok()?))).sum())
    }

    /// Rank 0 prints.
    pub fn print(&self, line: impl AsRef<str>) {
        if self.rank == 0 {
            println!("{}", line.as_ref());
        }
    }

    pub fn heading(&self, title: &str, columns: &[&str]) {
        self.print(format!("\n### {title}\n"));
        self.print(format!("| {} |", columns.join(" | ")));
        self.print(format!("|{}", "---|".repeat(columns.len())));
    }

    pub fn row(&self, cells: &[String]) {
        self.print(format!("| {} |", cells.join(" | ")));
    }

    /// Counts a result that is not what the transport promises; the run then fails at its end.
    pub fn fail(&mut self, what: &str) {
        eprintln!("rank {}: UNEXPECTED: {what}", self.rank);
        self.failures += 1;
    }

    pub fn finish(self) -> Outcome<()> {
        let Bench { transport, world, failures, rank, .. } = self;
        drop(world);
        transport.finish()?;
        if failures == 0 { Ok(()) } else { Err(format!("rank {rank}: {failures} unexpected results").into()) }
    }
}

/// `bad of all (percent)`.
pub fn share(bad: u64, all: u64) -> String {
    if bad == 0 {
        format!("0 of {all}")
    } else {
        format!("{bad} of {all} ({:.2} %)", 100.0 * bad as f64 / all as f64)
    }
}
