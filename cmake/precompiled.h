// SPDX-License-Identifier: Apache-2.0
// Precompiled once for all files that include LibTorch; see Torch.cmake.
#pragma once

#include <torch/torch.h>
#include <torch/version.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <ranges>
#include <span>

// Clang performs the instantiations of templates that a precompiled header asks for in the header
// itself, except those of virtual functions: each file that uses the header repeated them, for 1.2
// seconds. So the header calls the functions here, by names that a later LibTorch may not have.
#if defined(__clang__) && TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 13
// clang-format off: it would indent each line further
#define TRIREME_FOR_MODULES(apply) \
  apply(ModuleDict) apply(ParameterDict) apply(Sequential) apply(Linear) apply(Unflatten) \
  apply(Bilinear) apply(Softmax) apply(Softmin) apply(LogSoftmax) apply(Threshold) \
  apply(MultiheadAttention) apply(AdaptiveLogSoftmaxWithLoss) apply(Conv1d) apply(Conv2d) \
  apply(Conv3d) apply(ConvTranspose1d) apply(ConvTranspose2d) apply(ConvTranspose3d) \
  apply(Embedding) apply(EmbeddingBag) apply(Fold) apply(Unfold) apply(LayerNorm) \
  apply(LocalResponseNorm) apply(CrossMapLRN2d) apply(GroupNorm) apply(FractionalMaxPool2d) \
  apply(FractionalMaxPool3d) apply(RNN) apply(LSTM) apply(GRU) apply(RNNCell) apply(LSTMCell) \
  apply(GRUCell) apply(TransformerEncoderLayer) apply(TransformerDecoderLayer) \
  apply(TransformerEncoder) apply(TransformerDecoder)
// clang-format on

namespace trireme::precompiled {

template <auto Member>
struct Instantiate {};
// Private, and so named by explicit instantiations alone.
#define TRIREME_PRIVATE_CLONE(name) \
  template struct Instantiate<&torch::nn::Cloneable<torch::nn::name##Impl>::clone_>;
TRIREME_FOR_MODULES(TRIREME_PRIVATE_CLONE)
#undef TRIREME_PRIVATE_CLONE

template <class Type>
Type& pretended();

template <class Type>
void compare_types() {
  using Single = c10::SingleElementType<Type::Kind, Type>;
  pretended<Single>().Single::equals(pretended<c10::Type>());
  pretended<Single>().Single::containedTypes();
}

template <class Attribute>
void clone_attribute() {
  pretended<Attribute>().Attribute::clone();
}

template <class Dataset>
void load_batch() {
  pretended<Dataset>().Dataset::get_batch(c10::ArrayRef<std::size_t>());
}

template <std::size_t Dimensions, class Convolution>
void reset_and_print() {
  using Base = torch::nn::ConvNdImpl<Dimensions, Convolution>;
  pretended<Base>().Base::reset();
  pretended<Base>().Base::pretty_print(pretended<std::ostream>());
}

template <std::size_t Dimensions, class Convolution>
void reset_and_print_transposed() {
  using Base = torch::nn::ConvTransposeNdImpl<Dimensions, Convolution>;
  reset_and_print<Dimensions, Convolution>();
  pretended<Base>().Base::pretty_print(pretended<std::ostream>());
}

template <class Base, class... Derived>
void copy() {
  (static_cast<void>(std::unique_ptr<Base>(std::make_unique<Derived>(pretended<const Derived>()))),
   ...);
}

// Never called, nor compiled to code.
inline void instantiate() {
#define TRIREME_CLONE(name) \
  pretended<torch::nn::name##Impl>().torch::nn::Cloneable<torch::nn::name##Impl>::clone();
  TRIREME_FOR_MODULES(TRIREME_CLONE)
#undef TRIREME_CLONE
  namespace jit = torch::jit;
  using jit::AttributeKind, jit::ScalarAttributeValue, jit::VectorAttributeValue;
  compare_types<c10::ListType>();
  compare_types<c10::FutureType>();
  compare_types<c10::AwaitType>();
  compare_types<c10::RRefType>();
  clone_attribute<ScalarAttributeValue<double, AttributeKind::f>>();
  clone_attribute<ScalarAttributeValue<std::string, AttributeKind::s>>();
  clone_attribute<ScalarAttributeValue<c10::complex<double>, AttributeKind::c>>();
  clone_attribute<VectorAttributeValue<double, AttributeKind::fs>>();
  clone_attribute<VectorAttributeValue<c10::complex<double>, AttributeKind::cs>>();
  clone_attribute<VectorAttributeValue<std::string, AttributeKind::ss>>();
  clone_attribute<VectorAttributeValue<std::int64_t, AttributeKind::is>>();
  clone_attribute<VectorAttributeValue<c10::TypePtr, AttributeKind::tys>>();
  clone_attribute<VectorAttributeValue<at::Tensor, AttributeKind::ts>>();
  load_batch<torch::data::datasets::Dataset<torch::data::datasets::MNIST>>();
  load_batch<torch::data::datasets::Dataset<torch::data::datasets::TensorDataset,
                                            torch::data::TensorExample>>();
  reset_and_print<1, torch::nn::Conv1dImpl>();
  reset_and_print<2, torch::nn::Conv2dImpl>();
  reset_and_print<3, torch::nn::Conv3dImpl>();
  reset_and_print_transposed<1, torch::nn::ConvTranspose1dImpl>();
  reset_and_print_transposed<2, torch::nn::ConvTranspose2dImpl>();
  reset_and_print_transposed<3, torch::nn::ConvTranspose3dImpl>();
  copy<torch::optim::OptimizerParamState, torch::optim::AdagradParamState,
       torch::optim::AdamParamState, torch::optim::AdamWParamState, torch::optim::LBFGSParamState,
       torch::optim::RMSpropParamState, torch::optim::SGDParamState>();
  copy<torch::optim::OptimizerOptions, torch::optim::AdagradOptions, torch::optim::AdamOptions,
       torch::optim::AdamWOptions, torch::optim::LBFGSOptions, torch::optim::RMSpropOptions,
       torch::optim::SGDOptions>();
}

}  // namespace trireme::precompiled
#undef TRIREME_FOR_MODULES
#endif
