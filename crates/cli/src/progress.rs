//! Progress on standard error: a bar on a terminal, plain lines elsewhere, nothing with `--quiet`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Ticks of the spinner; slow enough not to flicker over a remote shell.
const TICK: Duration = Duration::from_millis(120);

/// Where progress goes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    terminal: bool,
    quiet: bool,
}

impl Progress {
    /// Progress for this process.
    pub fn new(quiet: bool) -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), quiet }
    }

    /// Runs one stage of a command and says how long it took.
    pub fn stage<T>(self, name: &str, work: impl FnOnce(&Stage) -> T) -> T {
        let start = Instant::now();
        let bar = if self.quiet || !self.terminal {
            ProgressBar::hidden()
        } else {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(TICK);
            bar
        };
        let result = work(&Stage { bar: bar.clone() });
        bar.finish_and_clear();
        if !self.quiet {
            eprintln!("{name:<10} {:>8.2} s", start.elapsed().as_secs_f64());
        }
        result
    }
}

/// A stage that is running.
#[derive(Clone, Debug)]
pub struct Stage {
    bar: ProgressBar,
}

impl Stage {
    /// What the stage is at. Shown on a terminal only.
    pub fn at(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }
}
