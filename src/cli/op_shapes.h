// The ops that models are made of, each shape once: what opbench and tune measure.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/model_shapes.h"
#include "model/model.h"

namespace sluice::cli {

/// An op at one shape. Pointers are to what OpShapes holds.
struct OpShape {
  std::string op;                   ///< "moe_gate_up"
  std::string weight;               ///< the first that it reads, without its layer: "ffn_gate_exps"; or ""
  std::string shape;                ///< "2 x 64x1536x2048 Q4_0" (profile::shape_text)
  std::vector<std::string> models;  ///< whose op this is
  int calls = 0;                    ///< of a step of the first of them
  const program::Program* program = nullptr;
  const program::Op* record = nullptr;
  const model::Model* file = nullptr;  ///< holds the weights; null: random ones will do
};

class OpShapes {
 public:
  /// Ops as the backend, which must outlive this, runs them in steps of so many rows: fused ops that it has
  /// no kernel for are there as what they expand into.
  OpShapes(const program::Backend& backend, int64_t rows) : backend_(backend), rows_(rows) {}

  /// The ops of a file.
  void add_file(const std::string& path);
  /// The ops of a model of `sluice synth`, without its file.
  void add_synth(const std::string& model, const std::string& mix);

  const std::vector<OpShape>& list() const { return list_; }
  /// Bytes for the op's weights: the file's, or random blocks that all weights of a type share. Good until
  /// the next call.
  const program::WeightBytes& weights(const OpShape& shape);

 private:
  void add(const std::string& name, const model::Model& model, bool has_weights);

  const program::Backend& backend_;
  int64_t rows_;
  std::vector<std::unique_ptr<program::Program>> programs_;
  std::vector<std::unique_ptr<model::Model>> files_;
  std::vector<std::unique_ptr<ModelShapes>> synths_;
  std::vector<OpShape> list_;
  std::map<std::string, size_t> index_;
  std::map<quant::Type, std::vector<std::byte>> random_;
  program::WeightBytes weights_;
};

}  // namespace sluice::cli
