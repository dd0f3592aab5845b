"""Where the algorithms are known from."""

BINE = (
    "D. De Sensi, S. Pasqualoni, L. Piarulli, T. Bonato, S. Ba, M. Turisini, J. Domke, T. Hoefler: Bine trees: "
    "enhancing collective operations by optimizing communication locality, SC 2025, arXiv:2508.17311"
)
BCUBE = (
    "C. Guo et al.: BCube: a high performance, server-centric network architecture for modular data centers, "
    "SIGCOMM 2009; as an all-reduce in Gloo, allreduce_bcube"
)
BLUECONNECT = (
    "M. Cho, U. Finkler, D. Kung, H. Hunter: BlueConnect: decomposing all-reduce for deep learning on heterogeneous "
    "network hierarchy, MLSys 2019"
)
BRUCK = (
    "J. Bruck et al.: Efficient algorithms for all-to-all communications in multiport message-passing systems, "
    "IEEE TPDS 8(11), 1997"
)
BYTEPS = (
    "Y. Jiang et al.: A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU "
    "clusters (BytePS), OSDI 2020; shares by bandwidth"
)
CHAN = (
    "E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: Collective communication: theory, practice, and "
    "experience, CCPE 19(13), 2007"
)
HENSGEN = "D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization, IJPP 17(1), 1988"
HOEFLER = (
    "T. Hoefler, D. Moor: Energy, memory, and runtime tradeoffs for implementing collective communication operations, "
    "Supercomputing Frontiers and Innovations 1(2), 2014"
)
INTERCOM = "M. Barnett et al.: Interprocessor collective communication library (InterCom), SHPCC 1994"
JAIN = "N. Jain, Y. Sabharwal: Optimal bucket algorithms for large MPI collectives on torus interconnects, ICS 2010"
KARONIS = (
    "N. Karonis, B. de Supinski, I. Foster, W. Gropp, E. Lusk, J. Bresnahan: Exploiting hierarchy in parallel computer "
    "networks to optimize collective operation performance, IPDPS 2000"
)
MIKAMI = (
    "H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y. Kageyama: Massively distributed SGD: ImageNet/ResNet-50 "
    "training in a flash, arXiv:1811.05233, 2018"
)
MPI = "MPI Forum: MPI: a message-passing interface standard, 1994; the definitions of the collectives"
MSCCLPP = "A. Shah et al.: MSCCL++: rethinking GPU communication abstractions, arXiv:2504.09014, 2025; all pairs"
OPEN_MPI = "Open MPI, coll/base: allreduce, allgather_reduce"
PAT = (
    "S. Jeaugey: PAT: a new algorithm for all-gather and reduce-scatter operations at scale, arXiv:2506.20252, 2025; "
    "in NCCL from 2.23"
)
PATARASUK = (
    "P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009"
)
RABENSEIFNER = "R. Rabenseifner: Optimization of collective reduction operations, ICCS 2004"
RUEFENACHT = (
    "M. Ruefenacht, M. Bull, S. Booth: Generalisation of recursive doubling for AllReduce: now with simulation, "
    "Parallel Computing 69, 2017"
)
SACK = "P. Sack, W. Gropp: Collective algorithms for multiported torus networks, ACM TOPC 1(2), 2015"
SANDERS = (
    "P. Sanders, J. Speck, J. L. Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, "
    "Parallel Computing 35(12), 2009"
)
SWING = (
    "D. De Sensi, T. Bonato, D. Saam, T. Hoefler: Swing: short-cutting rings for higher bandwidth allreduce, NSDI 2024"
)
THAKUR = (
    "R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH, "
    "IJHPCA 19(1), 2005"
)
WATTS = "J. Watts, R. van de Geijn: A pipelined broadcast for multidimensional meshes, PPL 5(2), 1995"
ZHU = "H. Zhu, D. Goodell, W. Gropp, R. Thakur: Hierarchical collectives in MPICH2, EuroPVM/MPI 2009"
