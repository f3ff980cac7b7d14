// SPDX-License-Identifier: Apache-2.0
#include "tests/support/device_layer.h"

#include <cstring>
#include <stdexcept>

#include "engine/bf16.h"
#include "layers/registry.h"
#include "tests/support/layer_harness.h"

namespace layup {
namespace {

// A graph of one layer, and its passes as operations: for the gradients of parameters alone without
// backward_data, since a device may make one operation of both.
struct OneLayer {
  Graph graph;
  TrainingGraph training;
  PhysicalGraph physical;

  const PhysicalOperation& operation(Pass pass) const {
    for (const auto* list : {&physical.operations, &physical.replays})
      for (const PhysicalOperation& op : *list)
        if (op.kind == OpKind::layer && op.node == NodeId{0} && op.pass == pass) return op;
    throw std::logic_error("no such pass");
  }
};

ValueKind kind_of(Role role) {
  switch (role) {
    case Role::parameter: return ValueKind::parameter;
    case Role::parameter_gradient: return ValueKind::parameter_gradient;
    case Role::buffer: return ValueKind::buffer;
    case Role::saved: return ValueKind::saved;
    case Role::carry: return ValueKind::carry;
    case Role::metric: return ValueKind::metric;
    case Role::dx:
    case Role::dy: return ValueKind::gradient;
    default: return ValueKind::activation;
  }
}

// Lets a batch norm write the value, which leaves it in blocks. Only the layouts matter: it is
// never run.
void put_in_blocks(OneLayer& one, ValueId value) {
  const TensorSpec spec = one.training.value(value).spec;
  if (spec.shape.size() != 4) return;
  const std::shared_ptr<const Layer> layer =
      read_layer(*find_layer_type(builtin_layers(), "batch_norm"), Json::object());
  Node node{"neighbour", "batch_norm", layer, layer->infer(std::span(&spec, 1)), {}, {}, {}};
  node.inputs.push_back(TensorId{static_cast<std::uint32_t>(one.graph.tensors.size())});
  one.graph.tensors.push_back({"neighbour", spec, {}, {}});
  Operation op;
  op.name = "neighbour of " + one.training.value(value).name;
  op.node = NodeId{static_cast<std::uint32_t>(one.graph.nodes.size())};
  op.pass = Pass::replay;
  op.writes = {value};
  for (std::size_t i = 0; i < node.info.pass(op.pass).reads.size(); ++i) {
    op.reads.push_back(ValueId{static_cast<std::uint32_t>(one.training.values.size())});
    one.training.values.push_back({op.name + " " + std::to_string(i),
                                   i == 0 ? spec : TensorSpec{{spec.shape[1]}},
                                   ValueKind::activation});
  }
  one.graph.nodes.push_back(std::move(node));
  one.training.operations.push_back(std::move(op));
}

OneLayer one_layer(const Layer& layer, const std::string& type, DeviceKind device,
                   Operands operands, const KernelOptions& options, const KernelRequest& request) {
  OneLayer one;
  Node node{"layer", type, std::shared_ptr<const Layer>(std::shared_ptr<void>(), &layer),
            {},      {},   {}};
  node.info = layer.infer(request.inputs);
  for (const TensorSpec& input : request.inputs) {
    node.inputs.push_back(TensorId{static_cast<std::uint32_t>(one.graph.tensors.size())});
    one.graph.tensors.push_back({"input", input, {}, {NodeId{0}}});
  }
  node.output = TensorId{static_cast<std::uint32_t>(one.graph.tensors.size())};
  one.graph.tensors.push_back({"layer", node.info.output, NodeId{0}, {}});
  one.graph.batch = one.training.batch = request.inputs[0].shape[0];
  one.graph.nodes.push_back(node);

  const LayerHarness specs(layer, {request.inputs.begin(), request.inputs.end()});
  for (const Slot slot : specs.slots())
    one.training.values.push_back({to_string(slot), specs.spec(slot), kind_of(slot.role)});
  const auto value_of = [&](Slot slot) {
    for (std::size_t i = 0; i < specs.slots().size(); ++i)
      if (specs.slots()[i] == slot) return ValueId{static_cast<std::uint32_t>(i)};
    throw std::logic_error("no such slot");
  };
  for (std::size_t i = 0; i < node.info.parameters.size(); ++i) {
    const Slot slot{Role::parameter, static_cast<int>(i)};
    one.training.parameters.push_back({to_string(slot),
                                       NodeId{0},
                                       node.info.parameters[i].shape,
                                       {},
                                       value_of(slot),
                                       value_of({Role::parameter_gradient, slot.index}),
                                       {}});
  }
  if (operands == Operands::blocked) {
    for (const Slot slot : specs.slots())
      if (slot.role == Role::x || slot.role == Role::dy) put_in_blocks(one, value_of(slot));
  }
  for (const Pass pass :
       {Pass::forward, Pass::evaluate, Pass::replay, Pass::backward_params, Pass::backward_data}) {
    const PassSpec& spec = node.info.pass(pass);
    const bool is_left_out = pass == Pass::backward_data && request.pass == Pass::backward_params;
    if (!spec.exists() || is_left_out) continue;
    Operation op;
    op.name = to_string(pass);
    op.pass = pass;
    for (const Slot slot : spec.reads) op.reads.push_back(value_of(slot));
    for (const Slot slot : spec.writes) op.writes.push_back(value_of(slot));
    op.in_place = spec.in_place;
    (pass == Pass::replay ? one.training.replays : one.training.operations).push_back(op);
  }
  one.physical =
      require_device_kernels(device).select(one.graph, one.training, request.threads, options);
  return one;
}

// One operand in the device's layout.
class Operand {
 public:
  explicit Operand(const PhysicalValue& value) : value_(value), block_(value.bytes) {}
  void* data() { return block_.bytes().data(); }

  void fill(const void* plain) {
    if (value_.layout.is_plain())
      std::memcpy(data(), plain, static_cast<std::size_t>(num_bytes(value_.spec)));
    else if (value_.spec.dtype == DType::f32)
      from_plain(value_.layout, value_.spec.shape, static_cast<const float*>(plain), data());
    else
      from_plain_bytes(static_cast<const std::uint8_t*>(plain));
  }
  void read(void* plain) {
    if (value_.layout.is_plain())
      std::memcpy(plain, data(), static_cast<std::size_t>(num_bytes(value_.spec)));
    else if (value_.spec.dtype == DType::f32)
      to_plain(value_.layout, value_.spec.shape, data(), static_cast<float*>(plain));
    else
      to_plain_bytes(static_cast<std::uint8_t*>(plain));
    if (!block_.is_intact()) throw std::runtime_error("a kernel writes outside " + value_.name);
  }
  // What lies in the padding must be zero, so that others may rely on it.
  bool has_clean_padding() {
    if (value_.layout.is_plain() || value_.spec.dtype != DType::f32) return true;
    return value_.layout.element == Element::bf16
               ? is_padding_clean<Bf16>([](Bf16 value) { return to_float(value); })
               : is_padding_clean<float>([](float value) { return value; });
  }

 private:
  template <typename T, typename Convert>
  bool is_padding_clean(const Convert& convert) {
    std::vector<float> plain(static_cast<std::size_t>(num_elements(value_.spec.shape)));
    const auto count = static_cast<std::size_t>(num_elements(value_));
    to_plain(value_.layout, value_.spec.shape, data(), plain.data());
    std::vector<T> again(count);
    from_plain(value_.layout, value_.spec.shape, plain.data(), again.data());
    const auto* found = static_cast<const T*>(data());
    for (std::size_t i = 0; i < count; ++i)
      if (convert(again[i]) == 0 && convert(found[i]) != 0) return false;
    return true;
  }
  void from_plain_bytes(const std::uint8_t* plain) {
    const auto count = static_cast<std::size_t>(num_elements(value_.spec.shape));
    std::vector<float> wide(plain, plain + count);
    std::vector<float> placed(static_cast<std::size_t>(num_elements(value_)));
    from_plain(value_.layout, value_.spec.shape, wide.data(), placed.data());
    for (std::size_t i = 0; i < placed.size(); ++i)
      static_cast<std::uint8_t*>(data())[i] = static_cast<std::uint8_t>(placed[i]);
  }
  void to_plain_bytes(std::uint8_t* plain) {
    const auto* bytes = static_cast<const std::uint8_t*>(data());
    const std::vector<float> placed(bytes, bytes + num_elements(value_));
    std::vector<float> wide(static_cast<std::size_t>(num_elements(value_.spec.shape)));
    to_plain(value_.layout, value_.spec.shape, placed.data(), wide.data());
    for (std::size_t i = 0; i < wide.size(); ++i) plain[i] = static_cast<std::uint8_t>(wide[i]);
  }

  PhysicalValue value_;
  GuardedBuffer block_;
};

bool allows(const PhysicalOperation& op, std::size_t read, std::size_t write) {
  for (const InPlace& pair : op.in_place)
    if (pair == InPlace{static_cast<int>(read), static_cast<int>(write)}) return true;
  return false;
}

}  // namespace

std::int64_t DeviceLayer::workspace_bytes(const KernelRequest& request) const {
  return one_layer(layer_, type_, device_, operands_, options_, request)
      .operation(request.pass)
      .workspace_bytes;
}

Kernel DeviceLayer::make_kernel(const KernelRequest& request) const {
  const OneLayer one = one_layer(layer_, type_, device_, operands_, options_, request);
  const PhysicalOperation op = one.operation(request.pass);
  const Kernel kernel = require_device_kernels(device_).make(one.graph, nullptr, one.physical, op);
  std::vector<Operand> reads;
  std::vector<Operand> writes;
  for (const ValueId value : op.reads) reads.emplace_back(one.physical.value(value));
  for (const ValueId value : op.writes) writes.emplace_back(one.physical.value(value));
  // What the operation writes beyond what the pass does, for it does the work of another, is
  // dropped.
  const std::size_t num_asked = infer(request.inputs).pass(request.pass).writes.size();
  std::vector<bool> is_updated;
  for (const ValueId value : op.writes)
    is_updated.push_back(is_persistent(one.physical.value(value).kind));
  return [=](const KernelArgs& args) mutable {
    KernelArgs inner = args;
    std::vector<const void*> read_pointers;
    std::vector<void*> write_pointers;
    for (std::size_t i = 0; i < reads.size(); ++i) {
      reads[i].fill(args.reads[i]);
      read_pointers.push_back(reads[i].data());
    }
    for (std::size_t j = 0; j < writes.size(); ++j) {
      write_pointers.push_back(writes[j].data());
      if (j >= num_asked) continue;
      if (is_updated[j]) writes[j].fill(args.writes[j]);
      for (std::size_t i = 0; i < reads.size(); ++i)
        if (args.reads[i] == args.writes[j] && allows(op, i, j))
          write_pointers[j] = reads[i].data();
    }
    inner.reads = read_pointers.data();
    inner.writes = write_pointers.data();
    kernel(inner);
    for (std::size_t j = 0; j < writes.size(); ++j) {
      if (write_pointers[j] != writes[j].data())  // in place: bring it to where it is read from
        std::memcpy(writes[j].data(), write_pointers[j],
                    static_cast<std::size_t>(one.physical.value(op.writes[j]).bytes));
      if (!writes[j].has_clean_padding())
        throw std::runtime_error("padding of " + one.physical.value(op.writes[j]).name +
                                 " is not zero");
      if (j < num_asked) writes[j].read(args.writes[j]);
    }
  };
}

}  // namespace layup
