//! Exactness classes: how much a rewrite step may change a result, and how much the user allows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far the two sides of a step may differ, strictest first.
///
/// `Bit` and `Nan` survive any consumer, so they hold for a whole program. `Zero` and `Real` hold per step only: 1/x, sign
/// and comparisons tell their sides apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Same bits.
    Bit,
    /// Same bits except NaN payloads and signs (a signalling NaN may be quieted).
    Nan,
    /// As `Nan`, and a zero may change its sign.
    Zero,
    /// Equal over the real numbers; float sums are re-associated.
    Real,
    /// Rounding is removed or done in a wider type, on purpose. Never an equality; directed steps only.
    Accuracy,
}

impl Class {
    /// The classes that a proof can find, strictest first.
    pub const PROVABLE: [Class; 4] = [Class::Bit, Class::Nan, Class::Zero, Class::Real];

    /// Name in the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Bit => "bit",
            Class::Nan => "nan",
            Class::Zero => "zero",
            Class::Real => "real",
            Class::Accuracy => "accuracy",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The loosest class of step that the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// Same bits.
    Bit,
    /// Same bits except NaN payloads.
    #[default]
    Nan,
    /// Signs of zero may change.
    Zero,
    /// Sums may be re-associated.
    Real,
}

impl Exactness {
    /// Whether a step of the given class is allowed. `Accuracy` steps are asked for in other ways.
    pub fn admits(self, class: Class) -> bool {
        class <= self.class()
    }

    /// The class of the same name.
    pub const fn class(self) -> Class {
        match self {
            Exactness::Bit => Class::Bit,
            Exactness::Nan => Class::Nan,
            Exactness::Zero => Class::Zero,
            Exactness::Real => Class::Real,
        }
    }

    /// The member called `name` on the command line.
    pub fn from_name(name: &str) -> Option<Exactness> {
        [Exactness::Bit, Exactness::Nan, Exactness::Zero, Exactness::Real]
            .into_iter()
            .find(|e| e.class().name() == name)
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.class().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_and_accuracy_is_never_admitted() {
        assert!(Exactness::Nan.admits(Class::Bit));
        assert!(!Exactness::Nan.admits(Class::Zero));
        assert!(!Exactness::Real.admits(Class::Accuracy));
    }
}
