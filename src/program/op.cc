#include "program/op.h"

namespace sluice::program {

OpArgs::OpArgs(const OpArgs& other) = default;
OpArgs::OpArgs(OpArgs&& other) noexcept = default;
OpArgs& OpArgs::operator=(const OpArgs& other) = default;
OpArgs& OpArgs::operator=(OpArgs&& other) noexcept = default;
OpArgs::~OpArgs() = default;

}  // namespace sluice::program
