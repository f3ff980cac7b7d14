// SPDX-License-Identifier: Apache-2.0
// What all kernels on oneDNN share: layouts to and from its memory descriptors, threads, and
// primitives that run without allocating.
#pragma once

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "engine/graph/layer.h"
#include "engine/layout.h"

namespace layup::cpu {

dnnl::engine& onednn_engine();

// Scratchpads are given by the caller.
const dnnl::primitive_attr& user_scratchpad();

dnnl::memory::desc to_desc(const Layout& layout, const Shape& plain_shape);
dnnl::memory::desc any_desc(const Shape& shape, Element element = Element::own);
Layout to_layout(const dnnl::memory::desc& desc);

// While it lives, oneDNN uses so many threads when called from this thread.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
  ~ThreadScope();

 private:
  int before_;
};

// One argument of a primitive and where a kernel finds its pointer.
struct Argument {
  enum class From : std::uint8_t { read, write, workspace };
  int id = 0;  // DNNL_ARG_...
  From from = From::read;
  int index = 0;
  dnnl::memory::desc desc;
};

// A kernel that runs one primitive. Memory objects are made here; running allocates nothing but
// what the library gives back before it returns (see engine/call_pool.h).
Kernel primitive_kernel(const dnnl::primitive& primitive, const std::vector<Argument>& arguments,
                        int threads);

// Workspace of a primitive descriptor, 0 if it needs none.
template <typename Descriptor>
std::int64_t scratchpad_bytes(const Descriptor& descriptor) {
  return static_cast<std::int64_t>(descriptor.scratchpad_desc().get_size());
}

// "onednn jit:avx512_core".
template <typename Descriptor>
std::string kernel_name(const Descriptor& descriptor) {
  return std::string("onednn ") + descriptor.impl_info_str();
}

// Of a float32 tensor of this shape, from one layout to another.
std::int64_t reorder_workspace_bytes(const Layout& from, const Layout& to, const Shape& shape,
                                     int threads);
Kernel reorder_kernel(const Layout& from, const Layout& to, const Shape& shape, int threads);

}  // namespace layup::cpu
