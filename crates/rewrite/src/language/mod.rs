//! The egg language of SPMD programs: tensor terms whose attributes are child leaves, so that a rule reads as an equation.

pub mod convert;
mod text;

use egg::Id;
use shardweld_ir::{DType, Group, ReduceOp, Scalar};

pub use text::parse_attr;

/// What an operator's child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A tensor.
    Tensor,
    /// A dimension of the first operand.
    Dim,
    /// Position of a root in its group.
    Root,
    /// A size, index or stride.
    Size,
    /// A group of ranks.
    Group,
    /// An element type.
    DType,
    /// An accumulation type, or none.
    Accum,
    /// A combination.
    Reduce,
    /// A result shape with the operand's number of elements.
    Shape,
    /// A shape that the operand broadcasts to.
    Broadcast,
    /// A permutation.
    Perm,
    /// A number.
    Scalar,
}

macro_rules! heads {
    ($($(#[$doc:meta])* $head:ident = $name:literal [$($sort:ident),*],)*) => {
        /// An operator of the language.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Head { $($(#[$doc])* $head,)* }
        impl Head {
            /// Every operator.
            pub const ALL: &'static [Head] = &[$(Head::$head,)*];
            /// Name in rules and certificates: the IR's mnemonic.
            pub const fn name(self) -> &'static str { match self { $(Head::$head => $name,)* } }
            /// What each child is.
            pub const fn signature(self) -> &'static [Sort] { match self { $(Head::$head => &[$(Sort::$sort),*],)* } }
            /// The operator of the given name.
            pub fn from_name(name: &str) -> Option<Head> { match name { $($name => Some(Head::$head),)* _ => None } }
        }
    };
}

heads! {
    /// x, op, accum, group.
    AllReduce = "all_reduce" [Tensor, Reduce, Accum, Group],
    /// x, dim, group.
    AllGather = "all_gather" [Tensor, Dim, Group],
    /// x, op, dim, accum, group.
    ReduceScatter = "reduce_scatter" [Tensor, Reduce, Dim, Accum, Group],
    /// x, split dim, concat dim, group.
    AllToAll = "all_to_all" [Tensor, Dim, Dim, Group],
    /// x, root, group.
    BroadcastFrom = "broadcast_from" [Tensor, Root, Group],
    /// x, op, root, accum, group.
    ReduceTo = "reduce_to" [Tensor, Reduce, Root, Accum, Group],
    /// x, dim, root, group.
    GatherTo = "gather_to" [Tensor, Dim, Root, Group],
    /// x, dim, root, group.
    ScatterFrom = "scatter_from" [Tensor, Dim, Root, Group],
    /// x, dim, group.
    OwnSlice = "own_slice" [Tensor, Dim, Group],
    /// x, dim, group, fill value.
    OwnPad = "own_pad" [Tensor, Dim, Group, Scalar],
    /// x, type.
    Cast = "cast" [Tensor, DType],
    /// x, shape.
    Reshape = "reshape" [Tensor, Shape],
    /// x, permutation.
    Transpose = "transpose" [Tensor, Perm],
    /// x, shape.
    Broadcast = "broadcast" [Tensor, Broadcast],
    /// x, dim, start, limit, stride.
    Slice = "slice" [Tensor, Dim, Size, Size, Size],
    /// a, b.
    Add = "add" [Tensor, Tensor],
    /// a, b.
    Mul = "mul" [Tensor, Tensor],
}

impl Head {
    /// Whether this communicates.
    pub const fn is_collective(self) -> bool {
        matches!(
            self,
            Head::AllReduce
                | Head::AllGather
                | Head::ReduceScatter
                | Head::AllToAll
                | Head::BroadcastFrom
                | Head::ReduceTo
                | Head::GatherTo
                | Head::ScatterFrom
        )
    }
}

/// An attribute of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attr {
    /// A dimension, root, index or size.
    Int(u64),
    /// A group.
    Group(Group),
    /// An element type.
    DType(DType),
    /// An accumulation type; `None` leaves it to the transport.
    Accum(Option<DType>),
    /// A combination.
    Reduce(ReduceOp),
    /// A shape or a permutation.
    Dims(Vec<u64>),
    /// A number.
    Scalar(Scalar),
}

/// An e-node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spmd {
    /// Value number k from outside the window.
    Live(u32),
    /// An attribute leaf.
    Attr(Attr),
    /// An operator on its children.
    Op(Head, Box<[Id]>),
}

/// What e-matching compares before children.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A live-in.
    Live(u32),
    /// An attribute leaf.
    Attr(Attr),
    /// An operator.
    Op(Head),
}

impl egg::Language for Spmd {
    type Discriminant = Kind;

    fn discriminant(&self) -> Kind {
        match self {
            Spmd::Live(k) => Kind::Live(*k),
            Spmd::Attr(a) => Kind::Attr(a.clone()),
            Spmd::Op(h, _) => Kind::Op(*h),
        }
    }

    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Spmd::Live(a), Spmd::Live(b)) => a == b,
            (Spmd::Attr(a), Spmd::Attr(b)) => a == b,
            (Spmd::Op(a, x), Spmd::Op(b, y)) => a == b && x.len() == y.len(),
            _ => false,
        }
    }

    fn children(&self) -> &[Id] {
        match self {
            Spmd::Op(_, children) => children,
            _ => &[],
        }
    }

    fn children_mut(&mut self) -> &mut [Id] {
        match self {
            Spmd::Op(_, children) => children,
            _ => &mut [],
        }
    }
}
