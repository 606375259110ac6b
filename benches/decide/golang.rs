//! client-go's limiters on the same machine in the same run: the benchmarks of tests/golden, which
//! pins their versions.

use std::path::Path;
use std::process::Command;

/// One result of `go test -bench`: its name, nanoseconds, and bytes of each where they are given.
pub(crate) struct Measured {
    pub(crate) what: String,
    pub(crate) nanos: f64,
    pub(crate) bytes: Option<f64>,
}

/// Measures Go's limiters.
///
/// # Errors
/// The reason it is not known.
pub(crate) fn limiters() -> Result<Vec<Measured>, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut command = Command::new("go");
    command.current_dir(module).args(["test", "-run=^$", "-bench=.", "-benchtime=200000x", "-count=3", "-cpu=2", "."]);
    let done = command.output().map_err(|error| format!("go: {error}"))?;
    let said = String::from_utf8_lossy(&done.stdout);
    if !done.status.success() {
        return Err(format!("go test: {}\n{said}{}", done.status, String::from_utf8_lossy(&done.stderr)));
    }
    let mut lines: Vec<Measured> = Vec::new();
    for line in said.lines().filter_map(read) {
        match lines.iter_mut().find(|known| known.what == line.what) {
            // A disturbance only ever adds time.
            Some(known) => known.nanos = known.nanos.min(line.nanos),
            None => lines.push(line),
        }
    }
    Ok(lines)
}

/// Reads `BenchmarkItem/of_10000-2  1000000  53.1 ns/op  120 B/item`.
fn read(line: &str) -> Option<Measured> {
    let mut words = line.strip_prefix("Benchmark")?.split_whitespace();
    let name = words.next()?;
    let what = name.rsplit_once('-').map_or(name, |(name, _)| name).replace('_', " ");
    let numbers: Vec<&str> = words.skip(1).collect();
    let of = |unit: &str| numbers.chunks_exact(2).find(|pair| pair[1] == unit)?[0].parse().ok();
    Some(Measured { what, nanos: of("ns/op")?, bytes: of("B/item") })
}
