// The C ABI of shardweld_trt.h over TensorRT's C++ API. Compiled twice (see build.rs), with SWT_RTX 0 or 1 and with
// `nvinfer1` renamed by the preprocessor, so that the two copies share no symbol.

#include "shardweld_trt.h"

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <NvInfer.h>

namespace nv = nvinfer1;

namespace {

class Log final : public nv::ILogger {
public:
    Log(SwtLogFn fn, void* user) : mFn(fn), mUser(user) {}
    void log(Severity severity, nv::AsciiChar const* msg) noexcept override {
        if (mFn != nullptr) {
            mFn(mUser, static_cast<int32_t>(severity), msg == nullptr ? "" : msg);
        }
    }

private:
    SwtLogFn mFn;
    void* mUser;
};

class Progress final : public nv::IProgressMonitor {
public:
    Progress(SwtProgressFn fn, void* user) : mFn(fn), mUser(user) {}
    void phaseStart(char const* phase, char const* parent, int32_t steps) noexcept override {
        mFn(mUser, SWT_PROGRESS_START, phase, parent, steps);
    }
    bool stepComplete(char const* phase, int32_t step) noexcept override {
        return mFn(mUser, SWT_PROGRESS_STEP, phase, nullptr, step) != 0;
    }
    void phaseFinish(char const* phase) noexcept override {
        mFn(mUser, SWT_PROGRESS_FINISH, phase, nullptr, 0);
    }

private:
    SwtProgressFn mFn;
    void* mUser;
};

struct Refused {
    std::string what;
};

[[noreturn]] void refuse(std::string what) {
    throw Refused{std::move(what)};
}

} // namespace

// Members are destroyed in reverse order: the engine's bytes, config and network go before the builder and the logger.
struct SwtSession {
    explicit SwtSession(SwtLogFn fn, void* user) : log(fn, user) {}
    Log log;
    std::unique_ptr<nv::IBuilder> builder;
    std::unique_ptr<nv::INetworkDefinition> network;
    std::unique_ptr<nv::IHostMemory> engine;
    std::vector<nv::ITensor*> tensors;
    std::string error;
};

namespace {

nv::DataType dtype(SwtDataType t) {
    switch (t) {
    case SWT_DTYPE_FLOAT: return nv::DataType::kFLOAT;
    case SWT_DTYPE_HALF: return nv::DataType::kHALF;
    case SWT_DTYPE_BF16: return nv::DataType::kBF16;
    case SWT_DTYPE_INT8: return nv::DataType::kINT8;
    case SWT_DTYPE_INT32: return nv::DataType::kINT32;
    case SWT_DTYPE_INT64: return nv::DataType::kINT64;
    case SWT_DTYPE_BOOL: return nv::DataType::kBOOL;
    case SWT_DTYPE_UINT8: return nv::DataType::kUINT8;
    case SWT_DTYPE_FP8: return nv::DataType::kFP8;
    }
    refuse("unknown data type " + std::to_string(static_cast<int>(t)));
}

SwtDataType dtypeBack(nv::DataType t) {
    switch (t) {
    case nv::DataType::kFLOAT: return SWT_DTYPE_FLOAT;
    case nv::DataType::kHALF: return SWT_DTYPE_HALF;
    case nv::DataType::kBF16: return SWT_DTYPE_BF16;
    case nv::DataType::kINT8: return SWT_DTYPE_INT8;
    case nv::DataType::kINT32: return SWT_DTYPE_INT32;
    case nv::DataType::kINT64: return SWT_DTYPE_INT64;
    case nv::DataType::kBOOL: return SWT_DTYPE_BOOL;
    case nv::DataType::kUINT8: return SWT_DTYPE_UINT8;
    case nv::DataType::kFP8: return SWT_DTYPE_FP8;
    default: break;
    }
    refuse("the library reports data type " + std::to_string(static_cast<int>(t)) + ", which is not in use here");
}

nv::UnaryOperation unary(SwtUnary op) {
    using U = nv::UnaryOperation;
    switch (op) {
    case SWT_UNARY_EXP: return U::kEXP;
    case SWT_UNARY_LOG: return U::kLOG;
    case SWT_UNARY_SQRT: return U::kSQRT;
    case SWT_UNARY_RECIP: return U::kRECIP;
    case SWT_UNARY_ABS: return U::kABS;
    case SWT_UNARY_NEG: return U::kNEG;
    case SWT_UNARY_SIN: return U::kSIN;
    case SWT_UNARY_COS: return U::kCOS;
    case SWT_UNARY_TAN: return U::kTAN;
    case SWT_UNARY_SINH: return U::kSINH;
    case SWT_UNARY_COSH: return U::kCOSH;
    case SWT_UNARY_ASIN: return U::kASIN;
    case SWT_UNARY_ACOS: return U::kACOS;
    case SWT_UNARY_ATAN: return U::kATAN;
    case SWT_UNARY_CEIL: return U::kCEIL;
    case SWT_UNARY_FLOOR: return U::kFLOOR;
    case SWT_UNARY_ERF: return U::kERF;
    case SWT_UNARY_NOT: return U::kNOT;
    case SWT_UNARY_SIGN: return U::kSIGN;
    case SWT_UNARY_ROUND: return U::kROUND;
    case SWT_UNARY_ISINF: return U::kISINF;
    case SWT_UNARY_ISNAN: return U::kISNAN;
    }
    refuse("unknown unary operation");
}

nv::ElementWiseOperation elementwise(SwtElementWise op) {
    using E = nv::ElementWiseOperation;
    switch (op) {
    case SWT_ELEMENTWISE_SUM: return E::kSUM;
    case SWT_ELEMENTWISE_PROD: return E::kPROD;
    case SWT_ELEMENTWISE_MAX: return E::kMAX;
    case SWT_ELEMENTWISE_MIN: return E::kMIN;
    case SWT_ELEMENTWISE_SUB: return E::kSUB;
    case SWT_ELEMENTWISE_DIV: return E::kDIV;
    case SWT_ELEMENTWISE_POW: return E::kPOW;
    case SWT_ELEMENTWISE_FLOOR_DIV: return E::kFLOOR_DIV;
    case SWT_ELEMENTWISE_AND: return E::kAND;
    case SWT_ELEMENTWISE_OR: return E::kOR;
    case SWT_ELEMENTWISE_XOR: return E::kXOR;
    case SWT_ELEMENTWISE_EQUAL: return E::kEQUAL;
    case SWT_ELEMENTWISE_GREATER: return E::kGREATER;
    case SWT_ELEMENTWISE_LESS: return E::kLESS;
    }
    refuse("unknown element-wise operation");
}

nv::ActivationType activation(SwtActivation op) {
    using A = nv::ActivationType;
    switch (op) {
    case SWT_ACTIVATION_RELU: return A::kRELU;
    case SWT_ACTIVATION_SIGMOID: return A::kSIGMOID;
    case SWT_ACTIVATION_TANH: return A::kTANH;
    case SWT_ACTIVATION_GELU_ERF: return A::kGELU_ERF;
    case SWT_ACTIVATION_GELU_TANH: return A::kGELU_TANH;
    }
    refuse("unknown activation");
}

nv::ReduceOperation reduce(SwtReduce op) {
    using R = nv::ReduceOperation;
    switch (op) {
    case SWT_REDUCE_SUM: return R::kSUM;
    case SWT_REDUCE_PROD: return R::kPROD;
    case SWT_REDUCE_MAX: return R::kMAX;
    case SWT_REDUCE_MIN: return R::kMIN;
    case SWT_REDUCE_AVG: return R::kAVG;
    case SWT_REDUCE_NONE: return R::kNONE;
    }
    refuse("unknown reduce operation");
}

nv::CollectiveOperation collective(SwtCollective op) {
    using C = nv::CollectiveOperation;
    switch (op) {
    case SWT_COLLECTIVE_ALL_REDUCE: return C::kALL_REDUCE;
    case SWT_COLLECTIVE_ALL_GATHER: return C::kALL_GATHER;
    case SWT_COLLECTIVE_BROADCAST: return C::kBROADCAST;
    case SWT_COLLECTIVE_REDUCE: return C::kREDUCE;
    case SWT_COLLECTIVE_REDUCE_SCATTER: return C::kREDUCE_SCATTER;
    case SWT_COLLECTIVE_ALL_TO_ALL: return C::kALL_TO_ALL;
    case SWT_COLLECTIVE_GATHER: return C::kGATHER;
    case SWT_COLLECTIVE_SCATTER: return C::kSCATTER;
    }
    refuse("unknown collective");
}

nv::CausalMaskKind causalKind(SwtCausal kind) {
    switch (kind) {
    case SWT_CAUSAL_NONE: return nv::CausalMaskKind::kNONE;
    case SWT_CAUSAL_UPPER_LEFT: return nv::CausalMaskKind::kUPPER_LEFT;
    case SWT_CAUSAL_LOWER_RIGHT: return nv::CausalMaskKind::kLOWER_RIGHT;
    }
    refuse("unknown causal mask kind");
}

nv::Dims dims(SwtDims const& d) {
    static_assert(SWT_MAX_DIMS == nv::Dims::MAX_DIMS, "the C ABI holds as many dimensions as TensorRT");
    if (d.nb_dims < 0 || d.nb_dims > SWT_MAX_DIMS) {
        refuse("a shape of " + std::to_string(d.nb_dims) + " dimensions; at most 8 are possible");
    }
    nv::Dims out{};
    out.nbDims = d.nb_dims;
    for (int32_t i = 0; i < d.nb_dims; ++i) {
        out.d[i] = d.d[i];
    }
    return out;
}

nv::Permutation permutation(SwtPermutation const& p) {
    nv::Permutation out{};
    for (int32_t i = 0; i < SWT_MAX_DIMS; ++i) {
        out.order[i] = p.order[i];
    }
    return out;
}

nv::ITensor& at(SwtSession& s, int32_t tensor) {
    if (tensor < 0 || static_cast<size_t>(tensor) >= s.tensors.size()) {
        refuse("tensor #" + std::to_string(tensor) + " does not exist");
    }
    return *s.tensors[tensor];
}

// Runs `f` and turns everything that can go wrong into -1 and a message.
template <typename F>
int32_t guarded(SwtSession* s, char const* call, F&& f) noexcept {
    if (s == nullptr) {
        return -1;
    }
    try {
        s->error.clear();
        return f(*s);
    } catch (Refused const& r) {
        s->error = std::string(call) + ": " + r.what;
    } catch (std::exception const& e) {
        s->error = std::string(call) + ": exception: " + e.what();
    } catch (...) {
        s->error = std::string(call) + ": unknown exception";
    }
    return -1;
}

int32_t keep(SwtSession& s, nv::ITensor* t) {
    if (t == nullptr) {
        refuse("the library returned no tensor");
    }
    s.tensors.push_back(t);
    return static_cast<int32_t>(s.tensors.size() - 1);
}

template <typename L>
L& made(L* layer, char const* name) {
    if (layer == nullptr) {
        refuse("the library returned no layer");
    }
    layer->setName(name);
    return *layer;
}

template <typename L>
int32_t keepLayer(SwtSession& s, L* layer, char const* name) {
    return keep(s, made(layer, name).getOutput(0));
}

SwtSession* create(SwtCreateBuilderFn entry, int32_t version, SwtLogFn log, void* user) {
    if (entry == nullptr) {
        return nullptr;
    }
    try {
        auto s = std::make_unique<SwtSession>(log, user);
        s->builder.reset(static_cast<nv::IBuilder*>(entry(static_cast<nv::ILogger*>(&s->log), version)));
        if (s->builder == nullptr) {
            return nullptr;
        }
        s->network.reset(s->builder->createNetworkV2(0U));
        return s->network == nullptr ? nullptr : s.release();
    } catch (...) {
        return nullptr;
    }
}

void destroy(SwtSession* s) {
    delete s;
}

char const* lastError(SwtSession const* s) {
    return s == nullptr ? "no session" : s->error.c_str();
}

int32_t addInput(SwtSession* s, char const* name, SwtDataType t, SwtDims const* d) {
    return guarded(s, "addInput", [&](SwtSession& s) {
        return keep(s, s.network->addInput(name, dtype(t), dims(*d)));
    });
}

int32_t addConstant(
    SwtSession* s, char const* name, SwtDataType t, SwtDims const* d, void const* data, int64_t count) {
    return guarded(s, "addConstant", [&](SwtSession& s) {
        return keepLayer(s, s.network->addConstant(dims(*d), nv::Weights{dtype(t), data, count}), name);
    });
}

int32_t addCast(SwtSession* s, char const* name, int32_t input, SwtDataType t) {
    return guarded(s, "addCast",
        [&](SwtSession& s) { return keepLayer(s, s.network->addCast(at(s, input), dtype(t)), name); });
}

int32_t addUnary(SwtSession* s, char const* name, int32_t input, SwtUnary op) {
    return guarded(s, "addUnary",
        [&](SwtSession& s) { return keepLayer(s, s.network->addUnary(at(s, input), unary(op)), name); });
}

int32_t addElementWise(SwtSession* s, char const* name, int32_t a, int32_t b, SwtElementWise op) {
    return guarded(s, "addElementWise", [&](SwtSession& s) {
        return keepLayer(s, s.network->addElementWise(at(s, a), at(s, b), elementwise(op)), name);
    });
}

int32_t addActivation(SwtSession* s, char const* name, int32_t input, SwtActivation op) {
    return guarded(s, "addActivation",
        [&](SwtSession& s) { return keepLayer(s, s.network->addActivation(at(s, input), activation(op)), name); });
}

int32_t addSelect(SwtSession* s, char const* name, int32_t condition, int32_t a, int32_t b) {
    return guarded(s, "addSelect", [&](SwtSession& s) {
        return keepLayer(s, s.network->addSelect(at(s, condition), at(s, a), at(s, b)), name);
    });
}

int32_t addMatmul(SwtSession* s, char const* name, int32_t a, int32_t ta, int32_t b, int32_t tb) {
    using M = nv::MatrixOperation;
    return guarded(s, "addMatrixMultiply", [&](SwtSession& s) {
        return keepLayer(s,
            s.network->addMatrixMultiply(at(s, a), ta != 0 ? M::kTRANSPOSE : M::kNONE, at(s, b),
                tb != 0 ? M::kTRANSPOSE : M::kNONE),
            name);
    });
}

int32_t addReduce(SwtSession* s, char const* name, int32_t input, SwtReduce op, uint32_t axes, int32_t keepDims) {
    return guarded(s, "addReduce", [&](SwtSession& s) {
        return keepLayer(s, s.network->addReduce(at(s, input), reduce(op), axes, keepDims != 0), name);
    });
}

int32_t addSoftmax(SwtSession* s, char const* name, int32_t input, uint32_t axis) {
    return guarded(s, "addSoftMax", [&](SwtSession& s) {
        auto& layer = made(s.network->addSoftMax(at(s, input)), name);
        layer.setAxes(axis);
        return keep(s, layer.getOutput(0));
    });
}

int32_t addNormalization(
    SwtSession* s, char const* name, int32_t input, int32_t scale, int32_t bias, uint32_t axes, float epsilon) {
    return guarded(s, "addNormalizationV2", [&](SwtSession& s) {
        auto& layer =
            made(s.network->addNormalizationV2(at(s, input), at(s, scale), at(s, bias), axes), name);
        layer.setEpsilon(epsilon);
        return keep(s, layer.getOutput(0));
    });
}

int32_t addAttention(SwtSession* s, char const* name, int32_t q, int32_t k, int32_t v, int32_t mask, SwtCausal causal,
    int32_t decomposable) {
    return guarded(s, "addAttentionV2", [&](SwtSession& s) {
        auto& layer = made(s.network->addAttentionV2(at(s, q), at(s, k), at(s, v),
                               nv::AttentionNormalizationOp::kSOFTMAX, causalKind(causal)),
            name);
        if (mask >= 0 && !layer.setMask(at(s, mask))) {
            refuse("the library refused the mask");
        }
        if (!layer.setDecomposable(decomposable != 0)) {
            refuse("the library refused setDecomposable");
        }
        return keep(s, layer.getOutput(0));
    });
}

int32_t addShuffle(SwtSession* s, char const* name, int32_t input, SwtPermutation const* first,
    SwtDims const* reshape, SwtPermutation const* second) {
    return guarded(s, "addShuffle", [&](SwtSession& s) {
        auto& layer = made(s.network->addShuffle(at(s, input)), name);
        // A 0 in a shape is an empty dimension here, never "copy from the input".
        layer.setZeroIsPlaceholder(false);
        if (first != nullptr) {
            layer.setFirstTranspose(permutation(*first));
        }
        if (reshape != nullptr) {
            layer.setReshapeDimensions(dims(*reshape));
        }
        if (second != nullptr) {
            layer.setSecondTranspose(permutation(*second));
        }
        return keep(s, layer.getOutput(0));
    });
}

int32_t addSlice(SwtSession* s, char const* name, int32_t input, SwtDims const* start, SwtDims const* size,
    SwtDims const* stride, int32_t fill) {
    return guarded(s, "addSlice", [&](SwtSession& s) {
        auto& layer = made(s.network->addSlice(at(s, input), dims(*start), dims(*size), dims(*stride)), name);
        if (fill >= 0) {
            layer.setMode(nv::SampleMode::kFILL);
            layer.setInput(4, at(s, fill));
        }
        return keep(s, layer.getOutput(0));
    });
}

int32_t addConcat(SwtSession* s, char const* name, int32_t const* inputs, int32_t count, int32_t axis) {
    return guarded(s, "addConcatenation", [&](SwtSession& s) {
        std::vector<nv::ITensor*> list;
        for (int32_t i = 0; i < count; ++i) {
            list.push_back(&at(s, inputs[i]));
        }
        auto& layer = made(s.network->addConcatenation(list.data(), count), name);
        layer.setAxis(axis);
        return keep(s, layer.getOutput(0));
    });
}

int32_t addGather(
    SwtSession* s, char const* name, int32_t data, int32_t indices, int32_t axis, int32_t elements) {
    return guarded(s, "addGatherV2", [&](SwtSession& s) {
        auto& layer = made(s.network->addGatherV2(at(s, data), at(s, indices),
                               elements != 0 ? nv::GatherMode::kELEMENT : nv::GatherMode::kDEFAULT),
            name);
        layer.setGatherAxis(axis);
        return keep(s, layer.getOutput(0));
    });
}

int32_t addConvolution(SwtSession* s, char const* name, int32_t input, int32_t kernel, int32_t bias, SwtDataType type,
    SwtConvolutionDesc const* c) {
    return guarded(s, "addConvolutionNd", [&](SwtSession& s) {
        // Kernel and bias are tensors here; the weights of the call stay empty.
        nv::Weights const none{dtype(type), nullptr, 0};
        auto& layer = made(
            s.network->addConvolutionNd(at(s, input), c->nb_output_maps, dims(c->kernel), none, none), name);
        layer.setInput(1, at(s, kernel));
        if (bias >= 0) {
            layer.setInput(2, at(s, bias));
        }
        layer.setStrideNd(dims(c->stride));
        layer.setPrePadding(dims(c->pre_padding));
        layer.setPostPadding(dims(c->post_padding));
        layer.setDilationNd(dims(c->dilation));
        layer.setNbGroups(c->nb_groups);
        return keep(s, layer.getOutput(0));
    });
}

int32_t addCollective(SwtSession* s, char const* name, int32_t input, SwtCollectiveDesc const* c) {
    return guarded(s, "addDistCollective", [&](SwtSession& s) {
        if (c->ranks == nullptr || c->nb_ranks < 1 || c->nb_ranks > INT32_MAX) {
            refuse("a collective needs an explicit list of ranks");
        }
        std::vector<int64_t> ranks(c->ranks, c->ranks + c->nb_ranks);
        auto& layer = made(s.network->addDistCollective(at(s, input), collective(c->op), reduce(c->reduce), c->root,
                               ranks.data(), c->nb_ranks),
            name);
        // Before anything can read a shape: shapes depend on the rank count.
        if (!layer.setNbRanks(static_cast<int32_t>(c->nb_ranks))) {
            refuse("the library refused setNbRanks");
        }
        return keep(s, layer.getOutput(0));
    });
}

int32_t markOutput(SwtSession* s, int32_t tensor, char const* name) {
    return guarded(s, "markOutput", [&](SwtSession& s) {
        nv::ITensor& t = at(s, tensor);
        t.setName(name);
        s.network->markOutput(t);
        return 0;
    });
}

int32_t tensorType(SwtSession* s, int32_t tensor, SwtDataType* t, SwtDims* d) {
    return guarded(s, "getDimensions", [&](SwtSession& s) {
        nv::ITensor& x = at(s, tensor);
        nv::Dims const found = x.getDimensions();
        *t = dtypeBack(x.getType());
        d->nb_dims = found.nbDims;
        for (int32_t i = 0; i < found.nbDims && i < SWT_MAX_DIMS; ++i) {
            d->d[i] = found.d[i];
        }
        return 0;
    });
}

int32_t nbLayers(SwtSession const* s) {
    return s == nullptr ? -1 : s->network->getNbLayers();
}

#if SWT_RTX
void setTarget(nv::IBuilderConfig& config, int32_t cc) {
    auto const target = cc == 0 ? nv::ComputeCapability::kCURRENT : static_cast<nv::ComputeCapability>(cc);
    if (!config.setNbComputeCapabilities(1) || !config.setComputeCapability(target, 0)) {
        refuse("the library refused compute capability " + std::to_string(cc));
    }
}
#else
void setTarget(nv::IBuilderConfig&, int32_t cc) {
    if (cc != 0) {
        refuse("TensorRT builds for the GPU of this machine only; leave the compute capability open");
    }
}
#endif

int32_t build(SwtSession* s, SwtBuildOptions const* o, void const** data, size_t* size) {
    return guarded(s, "buildSerializedNetwork", [&](SwtSession& s) {
        std::unique_ptr<nv::IBuilderConfig> config(s.builder->createBuilderConfig());
        if (config == nullptr) {
            refuse("the library returned no builder configuration");
        }
        config->setProfilingVerbosity(nv::ProfilingVerbosity::kDETAILED);
        setTarget(*config, o->compute_capability);
        if (!s.builder->setMaxThreads(o->max_threads)) {
            refuse("the library refused " + std::to_string(o->max_threads) + " builder threads");
        }
        Progress progress(o->progress, o->progress_user);
        if (o->progress != nullptr) {
            config->setProgressMonitor(&progress);
        }
        s.engine.reset(s.builder->buildSerializedNetwork(*s.network, *config));
        if (s.engine == nullptr || s.engine->size() == 0) {
            refuse("the library built no engine");
        }
        *data = s.engine->data();
        *size = s.engine->size();
        return 0;
    });
}

SwtApi const kApi = {NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR, NV_TENSORRT_PATCH, NV_TENSORRT_BUILD, create, destroy,
    lastError, addInput, addConstant, addCast, addUnary, addElementWise, addActivation, addSelect, addMatmul,
    addReduce, addSoftmax, addNormalization, addAttention, addShuffle, addSlice, addConcat, addGather,
    addConvolution, addCollective, markOutput, tensorType, nbLayers, build};

} // namespace

#if SWT_RTX
extern "C" SwtApi const* shardweld_trt_rtx_api(void) {
    return &kApi;
}
#else
extern "C" SwtApi const* shardweld_trt_api(void) {
    return &kApi;
}
#endif
