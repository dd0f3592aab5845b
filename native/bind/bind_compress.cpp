// Gradient compression (compress/compress.hpp) for ringleader.compress: on NumPy arrays, whose types and sizes are
// checked here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bind/bind.hpp"
#include "compress/compress.hpp"

namespace nb = nanobind;

namespace ringleader {
namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Maybe = std::optional<Vector<float>>;

// One vector, or several that stand for one, in a sequence; of exactly this type.
template <class T>
compress::Pieces<T> pieces_of(const char* what, nb::handle x) {
  compress::Pieces<T> pieces;
  Vector<T> one;
  if (nb::try_cast(x, one, false)) {
    pieces.add(one.data(), one.size());
    return pieces;
  }
  if (!nb::isinstance<nb::list>(x) && !nb::isinstance<nb::tuple>(x))
    throw nb::type_error(
        (std::string(what) + " is no contiguous, writable vector of float32, nor a list of such").c_str());
  for (const nb::handle each : nb::borrow<nb::sequence>(x)) {
    if (!nb::try_cast(each, one, false))
      throw nb::type_error(
          (std::string(what) + " has a piece that is no contiguous, writable vector of float32").c_str());
    pieces.add(one.data(), one.size());
  }
  return pieces;
}

compress::Scheme scheme_of(const std::string& text) {
  for (int code = 0; code < compress::kSchemeCount; ++code)
    if (text == compress::name(static_cast<compress::Scheme>(code))) return static_cast<compress::Scheme>(code);
  throw Error(ErrorKind::invalid, "unknown compression scheme '" + text + "'");
}

void require(const char* what, std::size_t got, std::size_t wanted) {
  if (got != wanted)
    throw Error(ErrorKind::invalid,
                std::string(what) + " has " + std::to_string(got) + " items, expected " + std::to_string(wanted));
}

void encode(const std::string& scheme, std::optional<Vector<std::uint8_t>> dst, const nb::object& src,
            std::optional<Vector<const float>> error, Maybe lost, Maybe decoded, float scale, std::uint32_t seed) {
  const compress::Scheme code = scheme_of(scheme);
  const auto pieces = pieces_of<const float>("the source", src);
  const std::size_t n = pieces.size();
  if (dst) require("the destination", dst->size(), compress::encoded_bytes(code, n));
  if (error) require("the error", error->size(), n);
  if (lost) require("what is lost", lost->size(), n);
  if (decoded) require("what is decoded", decoded->size(), n);
  const nb::gil_scoped_release unlocked;
  compress::encode(code, dst ? dst->data() : nullptr, pieces, error ? error->data() : nullptr,
                   lost ? lost->data() : nullptr, decoded ? decoded->data() : nullptr, scale, seed);
}

void decode(const std::string& scheme, const nb::object& dst, Vector<const std::uint8_t> src, bool accumulate) {
  const compress::Scheme code = scheme_of(scheme);
  const auto pieces = pieces_of<float>("the destination", dst);
  require("the payload", src.size(), compress::encoded_bytes(code, pieces.size()));
  const nb::gil_scoped_release unlocked;
  compress::decode(code, pieces, src.data(), accumulate);
}

compress::Rows rows_of(compress::Scheme code, const Matrix<const std::uint8_t>& rows, std::size_t elements,
                       float factor) {
  if (rows.shape(0) == 0 || rows.shape(1) < compress::encoded_bytes(code, elements))
    throw Error(ErrorKind::invalid, std::to_string(rows.shape(0)) + " rows of " + std::to_string(rows.shape(1)) +
                                        " bytes; expected at least one, of " +
                                        std::to_string(compress::encoded_bytes(code, elements)));
  return {rows.data(), rows.shape(0), rows.shape(1), factor};
}

void decode_sum(const std::string& scheme, Vector<float> dst, Matrix<const std::uint8_t> rows, float factor) {
  const compress::Scheme code = scheme_of(scheme);
  const compress::Rows from = rows_of(code, rows, dst.size(), factor);
  const nb::gil_scoped_release unlocked;
  compress::decode_sum(code, dst.data(), from, dst.size());
}

void encode_sum(const std::string& scheme, Vector<std::uint8_t> dst, Matrix<const std::uint8_t> rows,
                std::size_t elements, float factor, std::optional<Vector<const float>> error, Maybe lost,
                std::uint32_t seed) {
  const compress::Scheme code = scheme_of(scheme);
  const compress::Rows from = rows_of(code, rows, elements, factor);
  require("the destination", dst.size(), compress::encoded_bytes(code, elements));
  if (error) require("the error", error->size(), elements);
  if (lost) require("what is lost", lost->size(), elements);
  const nb::gil_scoped_release unlocked;
  compress::encode_sum(code, dst.data(), from, error ? error->data() : nullptr, lost ? lost->data() : nullptr, elements,
                       seed);
}

std::size_t select(Vector<const float> x, Vector<std::uint32_t> index, bool sampled, std::uint32_t seed) {
  const nb::gil_scoped_release unlocked;
  if (sampled) return compress::select_sampled(x.data(), x.size(), index.size(), seed, index.data());
  compress::select_top(x.data(), x.size(), index.size(), index.data());
  return index.size();
}

void select_random(std::size_t elements, Vector<std::uint32_t> index, std::uint32_t seed) {
  const nb::gil_scoped_release unlocked;
  compress::select_random(elements, index.size(), seed, index.data());
}

bool take(Vector<float> x, Vector<const std::uint32_t> index, Vector<float> value) {
  require("the values", value.size(), index.size());
  const nb::gil_scoped_release unlocked;
  return compress::take(x.data(), x.size(), index.data(), index.size(), value.data());
}

void scatter_add(const nb::object& dst, Vector<const std::uint32_t> index, Vector<const float> value, float scale) {
  require("the values", value.size(), index.size());
  const auto pieces = pieces_of<float>("the destination", dst);
  const nb::gil_scoped_release unlocked;
  compress::scatter_add(pieces, index.data(), value.data(), index.size(), scale);
}

void add(Vector<float> out, Vector<const float> a, const nb::object& b, float scale) {
  const auto pieces = pieces_of<const float>("the second summand", b);
  require("the first summand", a.size(), out.size());
  require("the second summand", pieces.size(), out.size());
  const nb::gil_scoped_release unlocked;
  compress::add(out.data(), a.data(), pieces, scale);
}

void clean(Vector<float> x) {
  const nb::gil_scoped_release unlocked;
  compress::clean(x.data(), x.size());
}

void orthonormalise(Matrix<float> p) {
  const nb::gil_scoped_release unlocked;
  compress::orthonormalise(p.data(), p.shape(0), p.shape(1));
}

void require_factors(const Matrix<const float>& m, std::size_t p_rows, std::size_t p_rank, std::size_t q_rows,
                     std::size_t q_rank) {
  require("p's rows", p_rows, m.shape(0));
  require("q's rows", q_rows, m.shape(1));
  require("q's columns", q_rank, p_rank);
}

void project(Matrix<const float> m, Matrix<const float> q, Matrix<float> p, std::optional<Matrix<const float>> error,
             std::optional<Matrix<float>> sum) {
  require_factors(m, p.shape(0), p.shape(1), q.shape(0), q.shape(1));
  if (error.has_value() != sum.has_value())
    throw Error(ErrorKind::invalid, "one of error and sum is missing; give both or none");
  if (error) {
    require("the error's rows", error->shape(0), m.shape(0));
    require("the error's columns", error->shape(1), m.shape(1));
    require("the sum's rows", sum->shape(0), m.shape(0));
    require("the sum's columns", sum->shape(1), m.shape(1));
  }
  const nb::gil_scoped_release unlocked;
  compress::project(m.data(), q.data(), p.data(), error ? error->data() : nullptr, sum ? sum->data() : nullptr,
                    m.shape(0), m.shape(1), p.shape(1));
}

void project_back(Matrix<const float> m, Matrix<const float> p, Matrix<float> q) {
  require_factors(m, p.shape(0), p.shape(1), q.shape(0), q.shape(1));
  const nb::gil_scoped_release unlocked;
  compress::project_back(m.data(), p.data(), q.data(), m.shape(0), m.shape(1), p.shape(1));
}

void expand(Matrix<const float> p, Matrix<const float> q, Matrix<float> out, std::optional<Matrix<float>> error) {
  require("q's columns", q.shape(1), p.shape(1));
  require("the rows of the product", out.shape(0), p.shape(0));
  require("the columns of the product", out.shape(1), q.shape(0));
  if (p.shape(1) == 0) throw Error(ErrorKind::invalid, "the factors have no columns; expected a rank of at least 1");
  if (error) {
    require("the error's rows", error->shape(0), out.shape(0));
    require("the error's columns", error->shape(1), out.shape(1));
  }
  const nb::gil_scoped_release unlocked;
  compress::expand(p.data(), q.data(), out.data(), error ? error->data() : nullptr, out.shape(0), out.shape(1),
                   p.shape(1));
}

}  // namespace

void bind_compress(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("compress");
  m.def(
      "block_elements", [](const std::string& scheme) { return compress::block_elements(scheme_of(scheme)); },
      nb::arg("scheme"));
  m.def(
      "encoded_bytes",
      [](const std::string& scheme, std::size_t n) { return compress::encoded_bytes(scheme_of(scheme), n); },
      nb::arg("scheme"), nb::arg("elements"));
  m.def("encode", &encode, nb::arg("scheme"), nb::arg("dst").none().noconvert(), nb::arg("src"),
        nb::arg("error").none().noconvert() = nb::none(), nb::arg("lost").none().noconvert() = nb::none(),
        nb::arg("decoded").none().noconvert() = nb::none(), nb::arg("scale") = 1.0F, nb::arg("seed") = 0);
  m.def("decode", &decode, nb::arg("scheme"), nb::arg("dst"), nb::arg("src").noconvert(),
        nb::arg("accumulate") = false);
  m.def("decode_sum", &decode_sum, nb::arg("scheme"), nb::arg("dst").noconvert(), nb::arg("rows").noconvert(),
        nb::arg("factor") = 1.0F);
  m.def("encode_sum", &encode_sum, nb::arg("scheme"), nb::arg("dst").noconvert(), nb::arg("rows").noconvert(),
        nb::arg("elements"), nb::arg("factor") = 1.0F, nb::arg("error").none().noconvert() = nb::none(),
        nb::arg("lost").none().noconvert() = nb::none(), nb::arg("seed") = 0);
  m.def("select", &select, nb::arg("x").noconvert(), nb::arg("index").noconvert(), nb::arg("sampled") = false,
        nb::arg("seed") = 0);
  m.def("select_random", &select_random, nb::arg("elements"), nb::arg("index").noconvert(), nb::arg("seed"));
  m.def("take", &take, nb::arg("x").noconvert(), nb::arg("index").noconvert(), nb::arg("value").noconvert());
  m.def("scatter_add", &scatter_add, nb::arg("dst"), nb::arg("index").noconvert(), nb::arg("value").noconvert(),
        nb::arg("scale") = 1.0F);
  m.def("add", &add, nb::arg("out").noconvert(), nb::arg("a").noconvert(), nb::arg("b"), nb::arg("scale") = 1.0F);
  m.def("clean", &clean, nb::arg("x").noconvert());
  m.def("orthonormalise", &orthonormalise, nb::arg("p").noconvert());
  m.def("project", &project, nb::arg("m").noconvert(), nb::arg("q").noconvert(), nb::arg("p").noconvert(),
        nb::arg("error").none().noconvert() = nb::none(), nb::arg("sum").none().noconvert() = nb::none());
  m.def("project_back", &project_back, nb::arg("m").noconvert(), nb::arg("p").noconvert(), nb::arg("q").noconvert());
  m.def("expand", &expand, nb::arg("p").noconvert(), nb::arg("q").noconvert(), nb::arg("out").noconvert(),
        nb::arg("error").none().noconvert() = nb::none());
}

}  // namespace ringleader
