//! Rewrite rules: equations between terms, with computed attributes and guards, all as data.
//!
//! A rule is not trusted for what it says: its exactness class per branch comes from its proof record, and a rule without a
//! current record is not used. One file per family:
//!
//! | file | holds |
//! |---|---|
//! | [`trivial_groups`] | groups of one rank |
//! | [`layout`] | transposes and reshapes around a collective |
//! | [`casts`] | redundant casts, casts across data movement |
//! | [`boundary`] | travelling in a wider type |
//! | [`gather_as_reduce`] | all-gather as an all-reduce over a padded buffer |
//! | [`small_groups`] | all-gather and reduce-scatter by collectives that keep the operand's shape |
//! | [`inverse`] | collectives and slices that undo each other |
//! | [`nesting`] | collectives over products of axes, reduce-scatter and all-gather against all-reduce |
//! | [`rooted`] | rooted collectives by symmetric ones |

pub mod boundary;
pub mod branch;
pub mod casts;
pub mod functions;
pub mod gather_as_reduce;
pub mod inverse;
pub mod layout;
pub mod nesting;
pub mod record;
pub mod rooted;
pub mod small_groups;
pub mod trivial_groups;

use std::collections::BTreeMap;
use std::fmt;

use egg::{ENodeOrVar, Pattern, Var};
use shardweld_ir::Mesh;

use crate::facts::Facts;
use crate::language::{Attr, Head, Sort, Spmd};
use functions::{Args, Bound, COMPUTED, GUARDS};

/// When a sound rule is worth trying. This is policy: it never makes a rule sound or unsound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// Always.
    Always,
    /// Where the target cannot build what the left side is.
    WhereUnbuildable,
    /// Where the target cannot build the all-gather or reduce-scatter because a larger group sets the size for shapes.
    WhereGroupTooSmall,
    /// Where the target cannot build the all-gather, or the user orders all-reduces.
    AllGatherAsReduce,
}

/// Which way a rule may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Both sides are equal; the e-graph unites them.
    Equation,
    /// The right side may be used for the left, not the other way round: it defines what the left leaves undefined.
    Refinement,
}

/// A rewrite rule as its author writes it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name, unique.
    pub name: &'static str,
    /// Left side, a term with `?variables`.
    pub lhs: &'static str,
    /// Right side.
    pub rhs: &'static str,
    /// Computed attributes, in order: `("?e", "element(?p, ?d)")`.
    pub compute: &'static [(&'static str, &'static str)],
    /// Guards, all of which must hold.
    pub guards: &'static [&'static str],
    /// Equation or refinement.
    pub direction: Direction,
    /// When it is tried.
    pub policy: Policy,
}

impl Rule {
    /// A rule without computed attributes or guards, always tried.
    const fn new(name: &'static str, lhs: &'static str, rhs: &'static str) -> Rule {
        Rule {
            name,
            lhs,
            rhs,
            compute: &[],
            guards: &[],
            direction: Direction::Equation,
            policy: Policy::Always,
        }
    }
    const fn compute(mut self, compute: &'static [(&'static str, &'static str)]) -> Rule {
        self.compute = compute;
        self
    }
    const fn guards(mut self, guards: &'static [&'static str]) -> Rule {
        self.guards = guards;
        self
    }
    const fn policy(mut self, policy: Policy) -> Rule {
        self.policy = policy;
        self
    }
    const fn refinement(mut self) -> Rule {
        self.direction = Direction::Refinement;
        self
    }

    /// The rule as one line of text: this is what its proof record is bound to, with the functions' source.
    pub fn equation(&self) -> String {
        let sign = match self.direction {
            Direction::Equation => "=",
            Direction::Refinement => "=>",
        };
        let mut text = format!("{} {sign} {}", self.lhs, self.rhs);
        for (i, (v, f)) in self.compute.iter().enumerate() {
            text += &format!("{} {v} = {f}", if i == 0 { " where" } else { "," });
        }
        for (i, g) in self.guards.iter().enumerate() {
            text += &format!("{} {g}", if i == 0 { " if" } else { " and" });
        }
        text
    }

    /// Parses the texts.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn compile(&self) -> Result<CompiledRule, RuleError> {
        let fail = |part: &str, reason: String| RuleError {
            rule: self.name.to_owned(),
            part: part.to_owned(),
            reason,
        };
        let side = |text: &str| text.parse::<Pattern<Spmd>>().map_err(|e| fail(text, e.to_string()));
        let (lhs, rhs) = (side(self.lhs)?, side(self.rhs)?);
        let mut known = lhs.vars();
        let mut compute = Vec::new();
        for (v, text) in self.compute {
            let var: Var = v.parse().map_err(|_| fail(v, "is no variable".into()))?;
            let (name, args) = parse_call(text).ok_or_else(|| fail(text, "is no call".into()))?;
            let index = COMPUTED
                .iter()
                .position(|f| f.0 == name)
                .ok_or_else(|| fail(text, "is no known function".into()))?;
            check_known(&known, &args).map_err(|r| fail(text, r))?;
            known.push(var);
            compute.push((var, index, args));
        }
        let mut guards = Vec::new();
        for text in self.guards {
            let (name, args) = parse_call(text).ok_or_else(|| fail(text, "is no call".into()))?;
            let index = GUARDS
                .iter()
                .position(|f| f.0 == name)
                .ok_or_else(|| fail(text, "is no known guard".into()))?;
            check_known(&known, &args).map_err(|r| fail(text, r))?;
            guards.push((index, args));
        }
        check_known(&known, &rhs.vars()).map_err(|r| fail(self.rhs, r))?;
        Ok(CompiledRule { rule: *self, lhs, rhs, compute, guards })
    }
}

fn check_known(known: &[Var], used: &[Var]) -> Result<(), String> {
    match used.iter().find(|v| !known.contains(v)) {
        Some(v) => Err(format!("{v} is not bound before")),
        None => Ok(()),
    }
}

fn parse_call(text: &str) -> Option<(&str, Vec<Var>)> {
    let (name, rest) = text.split_once('(')?;
    let inner = rest.strip_suffix(')')?;
    if inner.is_empty() {
        return Some((name, Vec::new()));
    }
    let args = inner.split(',').map(|v| v.trim().parse().ok()).collect::<Option<_>>()?;
    Some((name, args))
}

/// What is wrong with a rule's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule `{rule}`: `{part}` {reason}")]
pub struct RuleError {
    /// The rule.
    pub rule: String,
    /// The part.
    pub part: String,
    /// Why.
    pub reason: String,
}

/// A rule with its texts parsed.
#[derive(Clone, Debug)]
pub struct CompiledRule {
    /// As written.
    pub rule: Rule,
    /// Left side.
    pub lhs: Pattern<Spmd>,
    /// Right side.
    pub rhs: Pattern<Spmd>,
    compute: Vec<(Var, usize, Vec<Var>)>,
    guards: Vec<(usize, Vec<Var>)>,
}

/// What the variables of a rule stand for.
#[derive(Clone, Debug, Default)]
pub struct Bindings(pub BTreeMap<Var, Bound>);

impl Bindings {
    fn args(&self, vars: &[Var]) -> Option<Vec<&Bound>> {
        vars.iter().map(|v| self.0.get(v)).collect()
    }
}

impl CompiledRule {
    /// Computes the computed attributes, in order. `None` if the rule does not apply.
    pub fn complete(&self, bindings: &mut Bindings, mesh: &Mesh) -> Option<()> {
        for (var, index, vars) in &self.compute {
            let list = bindings.args(vars)?;
            let attr = COMPUTED[*index].2(&Args { mesh, list: &list })?;
            bindings.0.insert(*var, Bound::Attr(attr));
        }
        Some(())
    }

    /// Binds the left side to one operation, if it is a single operator on variables: attributes, and facts of the operands.
    pub fn bind_single(&self, head: Head, attrs: &[Attr], operands: &[Facts]) -> Option<Bindings> {
        let nodes = self.lhs.ast.as_ref();
        let Some(ENodeOrVar::ENode(Spmd::Op(root, children))) = nodes.last() else { return None };
        if *root != head {
            return None;
        }
        let mut bindings = Bindings::default();
        let (mut attrs, mut operands) = (attrs.iter(), operands.iter());
        for (&c, sort) in children.iter().zip(head.signature()) {
            let bound = match sort {
                Sort::Tensor => Bound::Tensor(operands.next()?.clone()),
                _ => Bound::Attr(attrs.next()?.clone()),
            };
            match &nodes[usize::from(c)] {
                ENodeOrVar::Var(v) => {
                    bindings.0.insert(*v, bound);
                }
                ENodeOrVar::ENode(Spmd::Attr(a)) => {
                    if !matches!(&bound, Bound::Attr(b) if b == a) {
                        return None;
                    }
                }
                ENodeOrVar::ENode(_) => return None,
            }
        }
        Some(bindings)
    }

    /// Variables that are computed.
    pub fn computed(&self) -> impl Iterator<Item = Var> + '_ {
        self.compute.iter().map(|c| c.0)
    }

    /// The first guard that does not hold, leaving out guard number `skip`.
    pub fn refusing_guard(
        &self,
        bindings: &Bindings,
        mesh: &Mesh,
        skip: Option<usize>,
    ) -> Option<&'static str> {
        self.guards.iter().enumerate().find_map(|(i, (index, vars))| {
            let holds = Some(i) == skip
                || bindings.args(vars).and_then(|list| GUARDS[*index].2(&Args { mesh, list: &list }))
                    == Some(true);
            (!holds).then(|| self.rule.guards[i])
        })
    }

    /// Whether the element type can matter: the left side computes, converts or fills, or something is computed from a type.
    pub fn depends_on_type(&self) -> bool {
        let computes = self.lhs.ast.as_ref().iter().any(|n| {
            matches!(n, ENodeOrVar::ENode(Spmd::Op(h, _)) if h.signature().iter().any(|s| {
                matches!(s, Sort::Reduce | Sort::DType | Sort::Scalar)
            }) || matches!(h, Head::Add | Head::Mul))
        });
        computes || self.compute.iter().any(|(_, i, _)| COMPUTED[*i].3)
    }

    /// Whether the left side reads an operand at a root only, so that it may be undefined elsewhere.
    pub fn reads_root_only(&self) -> bool {
        self.rooted_read().is_some()
    }

    /// The root and the group of the first such operator on the left side, as pattern nodes.
    pub fn rooted_read(&self) -> Option<(&ENodeOrVar<Spmd>, &ENodeOrVar<Spmd>)> {
        let nodes = self.lhs.ast.as_ref();
        nodes.iter().find_map(|n| match n {
            ENodeOrVar::ENode(Spmd::Op(head @ (Head::BroadcastFrom | Head::ScatterFrom), children)) => {
                let child = |sort| {
                    let at = head.signature().iter().position(|s| *s == sort)?;
                    nodes.get(usize::from(*children.get(at)?))
                };
                Some((child(Sort::Root)?, child(Sort::Group)?))
            }
            _ => None,
        })
    }

    /// Whether a guard asks the named question.
    pub fn asks(&self, guard: &str) -> bool {
        self.guards.iter().any(|(i, _)| GUARDS[*i].0 == guard)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.equation())
    }
}

/// Every rule, family by family.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    families().into_iter().flat_map(|(_, rules)| rules)
}

/// Rules by family.
pub fn families() -> [(&'static str, &'static [Rule]); 9] {
    [
        ("trivial_groups", trivial_groups::RULES),
        ("layout", layout::RULES),
        ("casts", casts::RULES),
        ("boundary", boundary::RULES),
        ("gather_as_reduce", gather_as_reduce::RULES),
        ("small_groups", small_groups::RULES),
        ("inverse", inverse::RULES),
        ("nesting", nesting::RULES),
        ("rooted", rooted::RULES),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_compiles_and_names_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        for rule in rules() {
            rule.compile().unwrap_or_else(|e| panic!("{e}"));
            assert!(names.insert(rule.name), "{} is there twice", rule.name);
        }
    }

    #[test]
    fn a_rule_with_a_free_variable_on_the_right_is_refused() {
        let bad = Rule::new("bad", "(cast ?x ?t)", "(cast ?y ?t)");
        assert!(bad.compile().unwrap_err().reason.contains("?y"));
        let bad = Rule::new("bad", "(cast ?x ?t)", "?x").guards(&["unheard_of(?x)"]);
        assert!(bad.compile().is_err());
    }
}
