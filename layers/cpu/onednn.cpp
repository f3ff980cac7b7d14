// SPDX-License-Identifier: Apache-2.0
#include "layers/cpu/onednn.h"

#include <algorithm>

#include "engine/call_pool.h"
#include "engine/error.h"
#include "engine/parallel.h"
#include "layers/cpu/cpu_layer.h"

namespace layup::cpu {
namespace {

using dnnl::memory;

// The library allocates in the threads of its team, too.
void enter_pool_in_team(int threads) {
  thread_local int entered = 0;
  if (threads == 1 || entered >= threads) return;
  entered = threads;
  in_other_threads_of_team(threads, [] { call_pool::enter_for_good(); });
}

// Row by row without gaps; strides of dimensions of size 1 say nothing.
bool is_row_major(const dnnl_memory_desc_t& desc) {
  if (desc.format_desc.blocking.inner_nblks != 0) return false;
  std::int64_t stride = 1;
  for (int d = desc.ndims - 1; d >= 0; --d) {
    if (desc.dims[d] != 1 && desc.format_desc.blocking.strides[d] != stride) return false;
    stride *= desc.dims[d];
  }
  return true;
}

memory::data_type data_type_of(Element element) {
  return element == Element::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

bool has_isa(dnnl::cpu_isa wanted) {
  const dnnl::cpu_isa found = dnnl::get_effective_cpu_isa();
  return found == dnnl::cpu_isa::all ||
         (static_cast<int>(found) & static_cast<int>(wanted)) == static_cast<int>(wanted);
}

class PrimitiveRun {
 public:
  PrimitiveRun(const dnnl::primitive& primitive, const std::vector<Argument>& arguments,
               int threads)
      : primitive_(primitive), stream_(onednn_engine()), threads_(threads) {
    memories_.reserve(arguments.size());
    for (const Argument& argument : arguments) {
      memories_.push_back(memory(argument.desc, onednn_engine(), DNNL_MEMORY_NONE));
      from_.push_back({argument.from, argument.index, nullptr});
      list_.push_back({argument.id, memories_.back().get()});
    }
  }

  void run(const KernelArgs& args) {
    set_library_threads(threads_);
    enter_pool_in_team(threads_);
    const call_pool::Scope scope;
    for (std::size_t i = 0; i < from_.size(); ++i) {
      void* const pointer = pointer_of(from_[i], args);
      if (pointer == from_[i].last) continue;  // as in every step after the first
      if (dnnl_memory_set_data_handle(list_[i].memory, pointer) != dnnl_success)
        throw DeviceError("oneDNN does not take an operand of a primitive");
      from_[i].last = pointer;
    }
    const dnnl_status_t status = dnnl_primitive_execute(
        primitive_.get(), stream_.get(), static_cast<int>(list_.size()), list_.data());
    if (status != dnnl_success)
      throw DeviceError("oneDNN could not run a primitive (status " + std::to_string(status) + ")");
  }

 private:
  struct Source {
    Argument::From from;
    int index;
    void* last;
  };
  static void* pointer_of(const Source& source, const KernelArgs& args) {
    switch (source.from) {
      case Argument::From::read: return const_cast<void*>(args.reads[source.index]);
      case Argument::From::write: return args.writes[source.index];
      case Argument::From::workspace: return args.workspace;
    }
    return nullptr;
  }

  dnnl::primitive primitive_;
  dnnl::stream stream_;
  int threads_;
  std::vector<memory> memories_;
  std::vector<Source> from_;
  std::vector<dnnl_exec_arg_t> list_;
};

}  // namespace

std::int64_t channel_block() {
  static const bool wide = has_isa(dnnl::cpu_isa::avx512_core);
  return wide ? 16 : 8;
}

bool has_bf16() {
  static const bool found = has_isa(dnnl::cpu_isa::avx512_core_bf16);
  return found;
}

dnnl::engine& onednn_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

const dnnl::primitive_attr& user_scratchpad() {
  static const dnnl::primitive_attr attributes = [] {
    dnnl::primitive_attr made;
    made.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return made;
  }();
  return attributes;
}

memory::desc to_desc(const Layout& layout, const Shape& plain_shape) {
  const Shape& dims = layout.is_row_major() ? plain_shape : layout.dims;
  memory::dims strides(dims.size(), 1);
  for (std::size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
  memory::desc desc(dims, data_type_of(layout.element), strides);
  if (layout.is_row_major()) return desc;
  auto& blocking = desc.data.format_desc.blocking;
  std::ranges::copy(layout.strides, blocking.strides);
  blocking.inner_nblks = static_cast<int>(layout.blocks.size());
  for (std::size_t b = 0; b < layout.blocks.size(); ++b) {
    blocking.inner_blks[b] = layout.blocks[b].size;
    blocking.inner_idxs[b] = layout.blocks[b].dimension;
  }
  for (std::size_t d = 0; d < dims.size(); ++d) {
    std::int64_t whole = 1;
    for (const Layout::Block& block : layout.blocks)
      if (block.dimension == static_cast<int>(d)) whole *= block.size;
    desc.data.padded_dims[d] = round_up(dims[d], whole);
  }
  return desc;
}

memory::desc any_desc(const Shape& shape, Element element) {
  return {shape, data_type_of(element), memory::format_tag::any};
}

Layout to_layout(const memory::desc& desc) {
  const dnnl_memory_desc_t& data = desc.data;
  LAYUP_ASSERT(data.format_kind == dnnl_blocked);
  Layout layout;
  if (data.data_type == dnnl_bf16) layout.element = Element::bf16;
  if (is_row_major(data)) return layout;
  layout.dims.assign(data.dims, data.dims + data.ndims);
  const auto& blocking = data.format_desc.blocking;
  layout.strides.assign(blocking.strides, blocking.strides + data.ndims);
  for (int b = 0; b < blocking.inner_nblks; ++b)
    layout.blocks.push_back({static_cast<int>(blocking.inner_idxs[b]), blocking.inner_blks[b]});
  return layout;
}

ThreadScope::ThreadScope(int threads) : before_(library_threads()) { set_library_threads(threads); }
ThreadScope::~ThreadScope() { set_library_threads(before_); }

Kernel primitive_kernel(const dnnl::primitive& primitive, const std::vector<Argument>& arguments,
                        int threads) {
  auto run = std::make_shared<PrimitiveRun>(primitive, arguments, threads);
  return [run](const KernelArgs& args) { run->run(args); };
}

namespace {

struct Reorder {
  memory::desc from, to;
  dnnl::reorder::primitive_desc descriptor;
};

Reorder reorder_of(const Layout& from, const Layout& to, const Shape& shape, int threads) {
  const ThreadScope scope(threads);
  const Shape& known = from.is_row_major() ? to.dims : from.dims;
  const Shape& dims = known.empty() ? shape : known;
  const memory::desc source = to_desc(from, dims);
  const memory::desc target = to_desc(to, dims);
  return {source, target, {onednn_engine(), source, onednn_engine(), target, user_scratchpad()}};
}

}  // namespace

std::int64_t reorder_workspace_bytes(const Layout& from, const Layout& to, const Shape& shape,
                                     int threads) {
  return scratchpad_bytes(reorder_of(from, to, shape, threads).descriptor);
}

Kernel reorder_kernel(const Layout& from, const Layout& to, const Shape& shape, int threads) {
  const ThreadScope scope(threads);
  const Reorder reorder = reorder_of(from, to, shape, threads);
  return primitive_kernel(
      dnnl::reorder(reorder.descriptor),
      {{DNNL_ARG_FROM, Argument::From::read, 0, reorder.from},
       {DNNL_ARG_TO, Argument::From::write, 0, reorder.to},
       {DNNL_ARG_SCRATCHPAD, Argument::From::workspace, 0, reorder.descriptor.scratchpad_desc()}},
      threads);
}

}  // namespace layup::cpu
