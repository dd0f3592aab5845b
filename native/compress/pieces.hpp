// An array that lies in several pieces of memory, one after another: gradients of a bucket with others between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ringleader::compress {

template <class T>
class Pieces {
 public:
  Pieces() = default;
  Pieces(T* data, std::size_t elements) { add(data, elements); }

  void add(T* data, std::size_t elements) {
    if (elements == 0) return;
    pieces_.push_back({data, size_, elements});
    size_ += elements;
  }
  std::size_t size() const { return size_; }

  // Goes over the array from its start; what is asked for never lies before what was asked for last.
  class Cursor {
   public:
    explicit Cursor(const Pieces& pieces) : pieces_(pieces.pieces_) {}

    // Where the elements [at, at + n) lie, n > 0, or null if they are in several pieces.
    T* whole(std::size_t at, std::size_t n) {
      while (at >= pieces_[now_].begin + pieces_[now_].elements) ++now_;
      const Piece& piece = pieces_[now_];
      return at + n <= piece.begin + piece.elements ? piece.data + (at - piece.begin) : nullptr;
    }
    // f(memory, place from `at` on, elements) for each piece of [at, at + n), after whole(at, n).
    template <class F>
    void each(std::size_t at, std::size_t n, F f) const {
      std::size_t done = 0;
      for (std::size_t i = now_; done < n; ++i) {
        const std::size_t from = at + done - pieces_[i].begin, count = std::min(n - done, pieces_[i].elements - from);
        f(pieces_[i].data + from, done, count);
        done += count;
      }
    }

   private:
    const std::vector<typename Pieces::Piece>& pieces_;
    std::size_t now_ = 0;
  };

  // The element at a place below size(); fast where the places rise.
  class Lookup {
   public:
    explicit Lookup(const Pieces& pieces) : pieces_(pieces.pieces_) {}

    T& operator[](std::size_t at) {
      if (at - pieces_[now_].begin >= pieces_[now_].elements) {
        const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), at,
                                            [](std::size_t x, const Piece& p) { return x < p.begin; });
        now_ = static_cast<std::size_t>(after - pieces_.begin()) - 1;
      }
      return pieces_[now_].data[at - pieces_[now_].begin];
    }

   private:
    const std::vector<typename Pieces::Piece>& pieces_;
    std::size_t now_ = 0;
  };

 private:
  struct Piece {
    T* data;
    std::size_t begin, elements;
  };
  std::vector<Piece> pieces_;
  std::size_t size_ = 0;
};

}  // namespace ringleader::compress
